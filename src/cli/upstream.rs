//! `polyfpm upstream`: the NGINX include, printed or written.

use super::exit::Exit;
use super::report;
use crate::model::snapshot::NginxView;
use crate::runtime::draft::Draft;
use crate::runtime::include_of;

/// Prints the include, or writes it as the supervisor would.
pub(super) fn run(draft: &Draft, written: Option<NginxView>) -> Exit {
    let Some(rendered) = include_of(draft) else {
        report::failure("there is no NGINX to write for", &[], Some("set nginx.enabled and nginx.binary"));
        return Exit::NotAchieved;
    };
    for refused in &rendered.refused {
        report::error(&refused.error, None);
    }
    let text = match &written {
        None => rendered.text,
        Some(view) => {
            let file = draft.settings.nginx.include.display();
            let detail = view.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
            format!("{file}: {}{detail}\n", view.state)
        }
    };
    let good = written.is_none_or(|view| matches!(view.state.as_str(), "current" | "written"));
    match report::print(&text) {
        Ok(()) if good => Exit::Done,
        Ok(()) | Err(_) => Exit::NotAchieved,
    }
}
