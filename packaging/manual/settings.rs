//! `polyfpm.toml(5)` from `docs/settings.md`, the one text about each key.

use std::error::Error;

use polyfpm::edge::settings::keys::KEYS;

use super::troff::{escaped, inline};

/// Gives the page.
///
/// # Errors
/// A key of the program that the text does not describe.
pub(crate) fn page(markdown: &str) -> Result<String, Box<dyn Error>> {
    let mut out = format!(".TH polyfpm.toml 5 \"\" \"polyfpm {}\" polyfpm\n", env!("CARGO_PKG_VERSION"));
    out.push_str(".SH NAME\npolyfpm.toml \\- settings of one polyfpm instance\n.SH DESCRIPTION\n");
    let mut paragraph = Vec::new();
    let mut described = Vec::new();
    let mut fresh = true;
    for line in markdown.lines().skip(1) {
        let starts = line.is_empty() || line.starts_with(['#', '|', '-']);
        if starts && !paragraph.is_empty() {
            out.push_str(&format!("{}\n", inline(&paragraph.join(" "))));
            paragraph.clear();
            fresh = false;
        }
        if let Some(heading) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            out.push_str(&format!(".SH \"{}\"\n", inline(&heading.replace('`', "")).replace('"', "\\(dq")));
            fresh = true;
        } else if let Some(row) = line.strip_prefix("| `") {
            described.extend(row_of(row, &mut out));
        } else if let Some(item) = line.strip_prefix("- ") {
            out.push_str(".IP \\(bu 2\n");
            paragraph.push(item);
        } else if line.is_empty() && !fresh {
            out.push_str(".PP\n");
            fresh = true;
        } else if !line.starts_with('|') && !line.is_empty() {
            paragraph.push(line.trim());
        }
    }
    let lacking: Vec<String> =
        KEYS.iter().map(|key| format!("{}.{}", key.table, key.name)).filter(|key| !described.contains(key)).collect();
    if !lacking.is_empty() {
        return Err(format!("docs/settings.md does not describe {}", lacking.join(", ")).into());
    }
    out.push_str(".SH FILES\n.TP\n\\fI/etc/polyfpm/\\fRNAME\\fI.toml\\fR\nThe settings of the instance NAME.\n");
    out.push_str(".SH \"SEE ALSO\"\n\\fBpolyfpm\\fR(1), \\fBpolyfpm\\-check\\fR(1)\n");
    Ok(out.replace(".PP\n.SH", ".SH").replace(".PP\n.IP", ".IP").replace(".PP\n.TP", ".TP"))
}

/// Writes the row of one key and gives the key: "name` † | default | what it does |".
fn row_of(row: &str, out: &mut String) -> Option<String> {
    let (name, rest) = row.split_once('`')?;
    let mut cells = rest.split('|');
    let mark = cells.next()?.trim();
    let default = cells.next()?.trim();
    let text = cells.collect::<Vec<_>>().join("|");
    let mark = if mark.is_empty() { String::new() } else { format!(" {mark}") };
    out.push_str(&format!(
        ".TP\n\\fB{}\\fR{mark} (default: {})\n{}\n",
        escaped(name),
        inline(default),
        inline(text.trim_end_matches('|').trim())
    ));
    Some(name.to_owned())
}
