//! `[php]`.

use super::reader::{Section, Value};
use crate::model::settings::Php;

/// Variables that carry the talk between supervisor and master (P2, P30), so that no settings may set them.
const OWN_VARIABLES: [&str; 8] =
    ["FPM_SOCKETS", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "JOURNAL_STREAM"];

/// Reads `[php]`.
pub(super) fn read(section: &Section<'_>) -> Php {
    section.refuse_unknown_keys();
    let required = |key: &str, example: &str| section.required(key, example).and_then(|value| value.path()).unwrap_or_default();
    Php {
        binary: required("binary", "\"/usr/sbin/php-fpm8.2\""),
        config: required("config", "\"/etc/php/8.2/fpm/php-fpm.conf\""),
        ini: section.path("ini"),
        prefix: section.path("prefix"),
        define: section.get("define").map(|value| define(&value)).unwrap_or_default(),
        environment: section.get("environment").map(|value| environment(&value)).unwrap_or_default(),
        inherit_environment: section.get("inherit_environment").map(|value| inherit(&value)).unwrap_or_default(),
    }
}

fn define(value: &Value<'_>) -> Vec<(String, String)> {
    let entries = value.entries().unwrap_or_default();
    entries.into_iter().filter_map(|(key, value)| Some((ini_name(key, &value)?, ini_value(&value)?))).collect()
}

fn ini_name(key: &str, value: &Value<'_>) -> Option<String> {
    let fits = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_.-:".contains(c));
    if !fits {
        value.fail(format!("'{key}' is no name of an INI setting"), "write a name such as \"opcache.enable\"");
    }
    fits.then(|| key.to_owned())
}

fn ini_value(value: &Value<'_>) -> Option<String> {
    if let Some(number) = value.as_integer() {
        return Some(number.to_string());
    }
    let Some(text) = value.as_text() else {
        // An unquoted dot makes a table in TOML: define = { opcache.enable = "1" }.
        value.wrong_kind("text", r#"put the whole name and the value between double quotes, as in "opcache.enable" = "1""#);
        return None;
    };
    if text.chars().any(char::is_control) {
        value.fail(format!("{} has a control character in it", value.name()), "remove the character");
        return None;
    }
    Some(text.to_owned())
}

fn environment(value: &Value<'_>) -> Vec<(String, String)> {
    let entries = value.entries().unwrap_or_default();
    entries.into_iter().filter_map(|(name, value)| variable(name, &value)).collect()
}

/// Reads one variable. No message shows its value: it may be a secret.
fn variable(name: &str, value: &Value<'_>) -> Option<(String, String)> {
    if !is_variable_name(name) {
        value.fail(format!("'{name}' is no name of an environment variable"), "use letters, digits and '_', no digit first");
        return None;
    }
    if OWN_VARIABLES.contains(&name) {
        value.fail(format!("{name} is set by polyfpm itself"), format!("remove {name}"));
        return None;
    }
    let text = value.text()?;
    if text.contains('\0') {
        value.fail(format!("{} has a zero byte in it", value.name()), "remove the byte; no environment can carry it");
        return None;
    }
    Some((name.to_owned(), text.to_owned()))
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn inherit(value: &Value<'_>) -> Vec<String> {
    let elements = value.array().unwrap_or_default();
    elements.into_iter().filter_map(|element| inherit_pattern(&element)).collect()
}

fn inherit_pattern(element: &Value<'_>) -> Option<String> {
    let pattern = element.text()?;
    let fits = !pattern.is_empty() && pattern.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '*');
    if !fits {
        element.fail(
            format!("'{pattern}' is no name or pattern of environment variables"),
            "write a name, or a pattern with '*' such as \"DB_*\"",
        );
    }
    fits.then(|| pattern.to_owned())
}
