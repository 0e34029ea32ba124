//! Progress bars of the benches.

use std::time::Duration;

use indicatif::ProgressBar;

/// A progress bar on standard error, if that is a terminal.
pub(crate) fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps).with_message("measuring");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
