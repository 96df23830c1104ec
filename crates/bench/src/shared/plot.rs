//! What the plots of benchmarks share: colours, named lines, the legend, and the file.

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

use folioswap_command::exit::Failure;

/// A chart with numbers on both axes.
pub type Chart<'c, 's, X, Y> = ChartContext<'c, SVGBackend<'s>, Cartesian2d<X, Y>>;

const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(214, 39, 40), RGBColor(44, 160, 44), RGBColor(148, 103, 189)];

/// The colour of the line at an index.
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Draws the line at an index, with its name for the legend.
pub fn draw_line<'c, 's: 'c, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut Chart<'c, 's, X, Y>,
    (index, name): (usize, &str),
    points: impl Iterator<Item = (f64, f64)>,
    width: u32,
) -> Result<(), Box<dyn Error>> {
    let style = colour(index).stroke_width(width);
    chart
        .draw_series(LineSeries::new(points, style))?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    Ok(())
}

/// Draws the names of the lines.
pub fn draw_legend<'c, 's: 'c, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut Chart<'c, 's, X, Y>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn Error>> {
    let mut labels = chart.configure_series_labels();
    labels.position(position).border_style(BLACK).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}

/// Writes a drawing to a file.
pub fn save(file: &Path, drawn: Result<String, Box<dyn Error>>) -> Result<(), Failure> {
    drawn
        .map_err(|error| error.to_string())
        .and_then(|svg| std::fs::write(file, svg).map_err(|error| error.to_string()))
        .map_err(|error| Failure::new(format!("{} was not written: {error}", file.display())))
}
