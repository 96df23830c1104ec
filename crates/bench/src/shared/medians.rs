//! Statistics over several rounds: medians, and ratios that are robust against a single slow round.

/// The middle value, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// `ours` over `theirs`, if both were measured.
pub fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    Some(ours? / theirs?)
}

/// The median of the ratios of matching rounds. `ours` and `theirs` are in the same order.
pub fn median_of_ratios(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    median(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_of_rounds_that_belong_together() {
        assert_eq!(ratio(Some(3.0), Some(2.0)), Some(1.5));
        assert_eq!(ratio(None, Some(2.0)), None);
        assert_eq!(median_of_ratios(&[2.0, 9.0, 8.0], &[1.0, 1.0, 2.0]), Some(4.0));
        assert_eq!(median_of_ratios(&[], &[]), None);
    }
}
