//! Ways in for `fuzz/`.

use std::path::Path;

use super::{understand as understand_strictly, understand_anyway};
use crate::model::problem::Problem;
use crate::model::settings::Settings;

const FILE: &str = "/etc/polyfpm/web.toml";

/// Makes of a text what a file of it would give.
pub fn understand(text: &str) -> (Option<Settings>, Vec<Problem>) {
    understand_anyway(Path::new(FILE), text, |_, wanted| wanted)
}

/// Gives the settings of a text without a fault.
pub fn understood(text: &str) -> Option<Settings> {
    understand_strictly(Path::new(FILE), text, |_, wanted| wanted).ok().map(|loaded| loaded.settings)
}
