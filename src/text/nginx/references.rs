//! Where an upstream is still used (S11: an include removed too early stops NGINX at its next start).

use std::path::Path;

use super::dump::Config;
use super::syntax::Directive;
use crate::model::problem::Place;

impl Config {
    /// Gives every place outside of `include` that names the upstream: any word equal to it without case (a `map` or `set` may hold the
    /// name that a variable later brings), or a `fastcgi_pass` whose text with variables can become it.
    ///
    /// A `fastcgi_pass` that is a variable alone counts only where some other word holds the name.
    pub fn references(&self, name: &str, include: &Path) -> Vec<Place> {
        let mut places = Vec::new();
        for file in self.files.iter().filter(|file| file.path != include) {
            let Ok(directives) = &file.directives else { continue };
            let mut pending: Vec<&Directive> = directives.iter().rev().collect();
            while let Some(directive) = pending.pop() {
                if refers(directive, name) {
                    places.push(Place { file: file.path.clone(), line: directive.line });
                }
                pending.extend(directive.block.iter().flatten().rev());
            }
        }
        places
    }
}

fn refers(directive: &Directive, name: &str) -> bool {
    // An upstream of this name elsewhere defines it and does not use it.
    if directive.name == "upstream" || directive.name == "server_name" {
        return false;
    }
    directive.args.iter().any(|word| word.bytes.eq_ignore_ascii_case(name.as_bytes()) || has_host(&word.bytes, name))
        || (directive.name == "fastcgi_pass" && directive.args.first().is_some_and(|word| may_become(&word.text(), name)))
}

/// Tells whether the word is a URL such as `http://NAME/path`.
fn has_host(word: &[u8], name: &str) -> bool {
    let text = String::from_utf8_lossy(word);
    text.split_once("://").is_some_and(|(_, rest)| rest.split('/').next().is_some_and(|host| host.eq_ignore_ascii_case(name)))
}

/// Tells whether a text with variables and something fixed besides can become the name: each variable may become anything.
fn may_become(text: &str, name: &str) -> bool {
    let fixed = fixed_parts(&text.to_ascii_lowercase());
    if fixed.len() < 2 || fixed.iter().all(String::is_empty) {
        return false;
    }
    let name = name.to_ascii_lowercase();
    let mut rest = name.as_str();
    for (index, part) in fixed.iter().enumerate() {
        let found = if index == 0 {
            rest.strip_prefix(part.as_str())
        } else if index + 1 == fixed.len() {
            return rest.ends_with(part.as_str());
        } else {
            rest.find(part.as_str()).and_then(|at| rest.get(at + part.len()..))
        };
        let Some(left) = found else { return false };
        rest = left;
    }
    true
}

/// Gives the texts before, between and after the variables.
fn fixed_parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '$' {
            if let Some(part) = parts.last_mut() {
                part.push(character);
            }
            continue;
        }
        if rest.next_if_eq(&'{').is_some() {
            while rest.next().is_some_and(|character| character != '}') {}
        } else {
            while rest.next_if(|character| character.is_ascii_alphanumeric() || *character == '_').is_some() {}
        }
        parts.push(String::new());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_wherever_it_can_be_used() {
        let config = Config::from_dump(
            b"# configuration file /e/n:\nhttp {\nmap $host $p {\n default poly_www;\n}\nserver {\n# fastcgi_pass poly_www;\nserver_name poly_www;\n\
              location / { fastcgi_pass Poly_WWW; }\nlocation /v { fastcgi_pass poly_$pool; }\nlocation /w { fastcgi_pass $p; }\n\
              location /x { proxy_pass http://poly_www/a; }\n location /y { fastcgi_pass poly_${pool}_x; }\n}\n}\n\
              # configuration file /e/ours:\nupstream poly_www { server unix:/a; }\nmap $a $b { default poly_www; }\n",
        );
        let lines: Vec<u32> = config.references("poly_www", Path::new("/e/ours")).iter().map(|place| place.line).collect();
        assert_eq!(lines, [3, 8, 9, 11]);
        assert_eq!(config.references("other", Path::new("/e/ours")), []);
    }

    #[test]
    fn a_text_with_variables_can_become_what_its_fixed_parts_allow() {
        for (text, name, expected) in [
            ("a_$x", "a_b", true),
            ("a_$x", "b_b", false),
            ("${x}_b", "a_b", true),
            ("${x}_b_$y", "a_b_c", true),
            ("${x}_z_$y", "a_b_c", false),
            ("$x", "a", false),
            ("$x$y", "a", false),
            ("a", "a", false),
        ] {
            assert_eq!(may_become(text, name), expected, "{text} {name}");
        }
    }
}
