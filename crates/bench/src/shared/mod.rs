//! What the benchmarks share: the report and its JSON form (`report`), output lines and the progress bar (`progress`),
//! medians (`medians`), arenas from the command line (`setup`), turns under kernel swap
//! (`kernel_turn`), direct reads and writes (`raw`), memory that is checked at each access (`pages`), its content
//! (`records`), the choice of pages (`access`, `mix`), and the fill of compressed swap (`stored`).

pub mod access;
pub mod kernel_turn;
pub mod medians;
pub mod mix;
pub mod pages;
pub mod progress;
pub mod raw;
pub mod records;
pub mod report;
pub mod setup;
pub mod stored;
