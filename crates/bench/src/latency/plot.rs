//! Plots the distributions of `bench latency` as SVG: the share of touches that took longer than a time, on two
//! logarithmic axes.

use std::error::Error;
use std::path::Path;

use folioswap_core::HistogramSnapshot;
use plotters::prelude::*;

use crate::shared::plot::{draw_legend, draw_line, save};
use folioswap_command::exit::Failure;

/// A line of the plot.
pub struct Line<'a> {
    pub name: String,
    pub times: &'a HistogramSnapshot,
}

const SIZE: (u32, u32) = (960, 600);
/// The shares on the y axis.
const SHARES: std::ops::Range<f64> = 1e-6..1.0;

/// Draws the lines to a file.
pub fn draw(file: &Path, title: &str, lines: &[Line]) -> Result<(), Failure> {
    let mut svg = String::new();
    save(file, to_svg(&mut svg, title, lines).map(|()| svg))
}

fn to_svg(svg: &mut String, title: &str, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    let longest_us = lines.iter().map(|line| line.times.max()).max().unwrap_or(0) as f64 / 1e3;
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((1.0..longest_us.max(1000.0) * 1.2).log_scale(), SHARES.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("us from when a touch was due")
        .y_desc("share of touches that took longer")
        .x_label_formatter(&|us| format!("{us}"))
        .y_label_formatter(&|share| format!("{share:e}"))
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let count = line.times.count().max(1) as f64;
        let points = line.times.tail().map(|(ns, above)| (ns as f64 / 1e3, (above as f64 / count).max(SHARES.start)));
        draw_line(&mut chart, (index, &line.name), std::iter::once((1.0, 1.0)).chain(points), 2)?;
    }
    draw_legend(&mut chart, SeriesLabelPosition::LowerLeft)?;
    area.present()?;
    drop(chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use folioswap_core::Histogram;

    #[test]
    fn each_line_is_drawn_and_named() {
        let histogram = Histogram::new();
        (1..1000).for_each(|us| histogram.record(us * 1000));
        let times = histogram.snapshot();
        let lines = ["4K sync", "4K async"].map(|name| Line { name: name.to_owned(), times: &times });
        let mut svg = String::new();
        to_svg(&mut svg, "a title", &lines).expect("a drawing");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(["a title", "4K sync", "4K async", "us from when"].iter().all(|text| svg.contains(text)));
        assert!(svg.matches("<polyline").count() >= 2);
        to_svg(&mut String::new(), "nothing", &[Line { name: String::new(), times: &HistogramSnapshot::default() }])
            .expect("an empty drawing");
    }
}
