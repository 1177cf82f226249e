//! Text as troff reads it.

/// Gives `text` with nothing in it that troff would take for a request or an escape.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

/// Gives one paragraph of Markdown: code and strong in bold, links as their text.
pub(crate) fn inline(markdown: &str) -> String {
    let mut out = String::new();
    for (index, part) in markdown.split('`').enumerate() {
        if index % 2 == 1 {
            out.push_str(&format!("\\fB{}\\fR", escaped(part).trim_start_matches("\\&")));
        } else {
            out.push_str(&prose(part));
        }
    }
    if out.starts_with(['.', '\'']) { format!("\\&{out}") } else { out }
}

fn prose(markdown: &str) -> String {
    let mut out = String::new();
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once("](") {
        let (text, label) = before.rsplit_once('[').unwrap_or((before, ""));
        out.push_str(&format!("{text}{label}"));
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    let parts: Vec<String> = out.split("**").map(|part| escaped(part).trim_start_matches("\\&").to_owned()).collect();
    let strong = |(index, part): (usize, &String)| if index % 2 == 1 { format!("\\fB{part}\\fR") } else { part.clone() };
    parts.iter().enumerate().map(strong).collect()
}

/// Gives the text that a command's help ends with: `Example:` as a section, what is indented as it stands, the rest as notes.
pub(crate) fn after_help(text: &str) -> String {
    let mut out = String::new();
    let mut notes = String::new();
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        match block.strip_prefix("Example:\n") {
            Some(lines) => {
                out.push_str(".SH EXAMPLES\n.nf\n");
                lines.lines().for_each(|line| out.push_str(&format!("\\fB{}\\fR\n", escaped(line.trim_start()))));
                out.push_str(".fi\n");
            }
            None => block.lines().for_each(|line| notes.push_str(&format!(".PP\n{}\n", escaped(line)))),
        }
    }
    if notes.is_empty() { out } else { format!(".SH NOTES\n{}{out}", notes.trim_start_matches(".PP\n")) }
}
