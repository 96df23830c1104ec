//! Plots the rounds of `bench sweep` as SVG: the throughput of each system in each round.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use crate::sweep::Row;
use folioswap_command::exit::Failure;

const SIZE: (u32, u32) = (760, 380);

/// Of folioswap, and of what it is compared with.
const COLOURS: [RGBColor; 2] = [RGBColor(31, 119, 180), RGBColor(214, 39, 40)];

/// Draws the rounds of each system, by its name, to a file.
pub fn draw(file: &Path, title: &str, systems: &[(&str, &Vec<Row>)]) -> Result<(), Failure> {
    let mut svg = String::new();
    to_svg(&mut svg, title, systems)
        .and_then(|()| Ok(std::fs::write(file, svg)?))
        .map_err(|error| Failure::new(format!("{} was not written: {error}", file.display())))
}

fn to_svg(svg: &mut String, title: &str, systems: &[(&str, &Vec<Row>)]) -> Result<(), Box<dyn Error>> {
    let most_gbps = systems.iter().flat_map(|(_, rows)| *rows).map(Row::gbps).fold(0.1, f64::max);
    let names: Vec<_> = systems.first().into_iter().flat_map(|(_, rows)| *rows).map(|row| row.kind.name()).collect();
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.6..names.len() as f64 + 0.4, 0.0..most_gbps * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(names.len() + 2)
        .x_label_formatter(&|&round| label(&names, round))
        .x_desc("round")
        .y_desc("GB/s")
        .draw()?;
    let systems = systems.iter().filter(|(_, rows)| !rows.is_empty());
    for (colour, (name, rows)) in COLOURS.into_iter().zip(systems) {
        let points: Vec<_> = rows.iter().enumerate().map(|(at, row)| (at as f64 + 1.0, row.gbps())).collect();
        let style = colour.stroke_width(3);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, colour.filled())))?;
    }
    let mut names = chart.configure_series_labels();
    names.position(SeriesLabelPosition::UpperLeft).border_style(BLACK).background_style(WHITE.mix(0.8)).draw()?;
    area.present()?;
    drop(chart);
    Ok(())
}

/// The name of the round at a place of the axis; nothing between two rounds.
fn label(names: &[&str], round: f64) -> String {
    let index = round.round();
    if (round - index).abs() > 0.01 || index < 1.0 {
        return String::new();
    }
    names.get(index as usize - 1).map_or(String::new(), |name| format!("{index} {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::Kind;

    #[test]
    fn each_round_has_a_name_and_a_point_of_each_system() {
        let rows = [(Kind::First, 1.0), (Kind::Rewrite, 2.0), (Kind::Read, 4.0)]
            .map(|(kind, seconds)| Row { kind, seconds, bytes: 1 << 30, bad_words: 0 })
            .to_vec();
        let mut svg = String::new();
        let systems = [("folioswap", &rows), ("another", &rows), ("that did not run", &Vec::new())];
        to_svg(&mut svg, "a title", &systems).expect("a drawing");
        for text in ["a title", "folioswap", "another", "GB/s", "1 write", "2 rewrite", "3 read"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.matches("<circle").count() == 6 && !svg.contains("that did not run"));
        to_svg(&mut String::new(), "nothing", &[]).expect("an empty drawing");
    }
}
