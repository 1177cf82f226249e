//! Settings: any text gives settings or problems, and each problem points into the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use polyfpm::edge::settings::fuzzing::understand;
use polyfpm::model::problem::Severity;

fuzz_target!(|text: &str| {
    let (settings, problems) = understand(text);
    if settings.is_none() {
        assert!(problems.iter().any(|problem| problem.severity == Severity::Error), "nothing came of it, and nothing is said");
    }
    let lines = text.lines().count().max(1) + 1;
    for problem in &problems {
        let _shown = problem.to_string();
        if let Some(place) = &problem.place {
            assert!(usize::try_from(place.line).is_ok_and(|line| line <= lines), "{problem:?}");
        }
    }
});
