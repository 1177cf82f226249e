//! The grammar of NGINX's configuration: words, quotes, blocks, comments, and the Lua blocks that follow another grammar.
//!
//! Source: nginx `ngx_conf_file.c`, `ngx_conf_read_token`; lua-nginx-module `ngx_http_lua_directive.c` for `*_by_lua_block`.

use std::borrow::Cow;
use std::ops::Range;

/// The deepest nesting read. NGINX itself has no limit, but a real configuration stays below ten.
pub(super) const DEPTH_LIMIT: usize = 64;

/// One word of a directive, its quotes and escapes resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The word's bytes.
    pub bytes: Vec<u8>,
}

impl Word {
    /// Gives the word as text; bytes that are no UTF-8 become replacement characters.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

/// One directive with everything in its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Its first word.
    pub name: String,
    /// Its other words.
    pub args: Vec<Word>,
    /// The line its first word begins in, from 1.
    pub line: u32,
    /// The bytes it takes up in its file, from the first word to the `;` or `}`.
    pub span: Range<usize>,
    /// What its block holds; `None` for a directive that ends with `;`. Empty for Lua blocks.
    pub block: Option<Vec<Directive>>,
}

impl Directive {
    /// Gives argument `index` (from 0) as text.
    pub fn arg(&self, index: usize) -> Option<Cow<'_, str>> {
        self.args.get(index).map(Word::text)
    }
}

/// Says where and why a text is no NGINX configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct SyntaxError {
    /// The line, from 1.
    pub line: u32,
    /// What is wrong, a fragment.
    pub what: &'static str,
}

/// Reads one file's directives.
///
/// # Errors
/// Fails where NGINX's own parser would, and on nesting deeper than 64 blocks.
pub fn parse(text: &[u8]) -> Result<Vec<Directive>, SyntaxError> {
    let mut scanner = Scanner { text, at: 0, line: 1 };
    let mut open: Vec<Directive> = Vec::new();
    let mut level: Vec<Directive> = Vec::new();
    // The levels around `level`, one for each directive in `open`.
    let mut outer: Vec<Vec<Directive>> = Vec::new();
    loop {
        let statement = scanner.statement()?;
        match statement.end {
            End::File if open.is_empty() => return Ok(level),
            End::File => return Err(scanner.error("the file ends inside a block: a '}' is missing")),
            End::Semicolon => level.push(statement.directive(scanner.at, None)),
            End::Open if statement.is_lua() => {
                scanner.skip_lua_block()?;
                level.push(statement.directive(scanner.at, Some(Vec::new())));
            }
            End::Open => {
                if open.len() >= DEPTH_LIMIT {
                    return Err(scanner.error("blocks are nested too deeply"));
                }
                open.push(statement.directive(scanner.at, Some(Vec::new())));
                outer.push(std::mem::take(&mut level));
            }
            End::Close => {
                let (Some(mut directive), Some(around)) = (open.pop(), outer.pop()) else {
                    return Err(scanner.error("unexpected '}'"));
                };
                directive.block = Some(std::mem::replace(&mut level, around));
                directive.span.end = scanner.at;
                level.push(directive);
            }
        }
    }
}

/// What ended a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Semicolon,
    Open,
    Close,
    File,
}

struct Statement {
    words: Vec<Word>,
    start: usize,
    line: u32,
    end: End,
}

impl Statement {
    fn is_lua(&self) -> bool {
        self.words.first().is_some_and(|word| word.bytes.ends_with(b"_by_lua_block"))
    }

    fn directive(self, end: usize, block: Option<Vec<Directive>>) -> Directive {
        let mut words = self.words.into_iter();
        let name = words.next().map(|word| word.text().into_owned()).unwrap_or_default();
        Directive { name, args: words.collect(), line: self.line, span: self.start..end, block }
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
}

impl Scanner<'_> {
    fn error(&self, what: &'static str) -> SyntaxError {
        SyntaxError { line: self.line, what }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        if byte == b'\n' {
            self.line = self.line.saturating_add(1);
        }
        Some(byte)
    }

    fn skip_blanks_and_comments(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {
                    self.next();
                }
                b'#' => while self.next().is_some_and(|byte| byte != b'\n') {},
                _ => return,
            }
        }
    }

    /// Reads up to the next `;`, `{`, `}` or the end.
    fn statement(&mut self) -> Result<Statement, SyntaxError> {
        let mut words = Vec::new();
        let mut first = None;
        loop {
            self.skip_blanks_and_comments();
            let (start, line) = *first.get_or_insert((self.at, self.line));
            let end = match self.peek() {
                None if words.is_empty() => End::File,
                None => return Err(self.error("the file ends inside a directive: a ';' or '}' is missing")),
                Some(b';') if words.is_empty() => return Err(self.error("unexpected ';'")),
                Some(b'{') if words.is_empty() => return Err(self.error("unexpected '{'")),
                Some(b'}') if !words.is_empty() => return Err(self.error("unexpected '}': a ';' is missing before it")),
                Some(b';') => End::Semicolon,
                Some(b'{') => End::Open,
                Some(b'}') => End::Close,
                Some(quote @ (b'"' | b'\'')) => {
                    words.push(self.quoted(quote)?);
                    continue;
                }
                Some(_) => {
                    words.push(self.bare());
                    continue;
                }
            };
            self.next();
            return Ok(Statement { words, start, line, end });
        }
    }

    fn quoted(&mut self, quote: u8) -> Result<Word, SyntaxError> {
        self.next();
        let start = self.at;
        loop {
            match self.next() {
                None => return Err(self.error("the file ends inside a quoted word")),
                Some(b'\\') => {
                    self.next();
                }
                Some(byte) if byte == quote => break,
                Some(_) => {}
            }
        }
        let word = unescaped(self.text.get(start..self.at.saturating_sub(1)).unwrap_or_default());
        match self.peek() {
            // A ')' directly after a quote begins a word of its own: if ($a = "b").
            None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b')') => Ok(word),
            Some(_) => Err(self.error("a quoted word must be followed by a blank, ';', '{' or ')'")),
        }
    }

    fn bare(&mut self) -> Word {
        let start = self.at;
        let mut variable = false;
        while let Some(byte) = self.peek() {
            match byte {
                b'{' if variable => {}
                b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' => break,
                b'\\' => {
                    self.next();
                }
                _ => {}
            }
            variable = byte == b'$' || (byte == b'{' && variable);
            self.next();
        }
        unescaped(self.text.get(start..self.at).unwrap_or_default())
    }

    /// Skips Lua up to the brace that closes the block. Strings and comments may hold braces that do not count.
    fn skip_lua_block(&mut self) -> Result<(), SyntaxError> {
        let mut depth = 1_usize;
        while let Some(byte) = self.next() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b'"' | b'\'' => self.skip_lua_string(byte),
                b'[' => self.skip_lua_long_bracket(),
                b'-' if self.peek() == Some(b'-') => self.skip_lua_comment(),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(self.error("the file ends inside a Lua block: a '}' is missing"))
    }

    fn skip_lua_string(&mut self, quote: u8) {
        while let Some(byte) = self.next() {
            match byte {
                b'\\' => {
                    self.next();
                }
                // A Lua string does not go over a line's end: one quote too many must not swallow the rest of the file.
                b'\n' => return,
                _ if byte == quote => return,
                _ => {}
            }
        }
    }

    fn skip_lua_comment(&mut self) {
        self.next();
        if self.peek() == Some(b'[') {
            self.next();
            if self.long_bracket_level().is_some() {
                self.skip_lua_long_bracket();
                return;
            }
        }
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    /// Gives the number of `=` of the long bracket whose first `[` was just read, where it is one.
    fn long_bracket_level(&self) -> Option<usize> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn skip_lua_long_bracket(&mut self) {
        let Some(level) = self.long_bracket_level() else { return };
        let mut close = vec![b']'];
        close.resize(level.saturating_add(1), b'=');
        close.push(b']');
        while self.at < self.text.len() {
            if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(&close)) {
                self.at += close.len();
                return;
            }
            self.next();
        }
    }
}

/// Resolves escapes as NGINX does: a backslash before a quote or backslash goes, `\t`, `\r`, `\n` are control characters, any other stays.
fn unescaped(raw: &[u8]) -> Word {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let resolved = match rest.peek() {
            Some(&quote @ (b'"' | b'\'' | b'\\')) => quote,
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(_) | None => {
                bytes.push(byte);
                continue;
            }
        };
        rest.next();
        bytes.push(resolved);
    }
    Word { bytes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(directives: &[Directive]) -> String {
        let one = |directive: &Directive| {
            let args: String = directive.args.iter().map(|arg| format!(" <{}>", arg.text())).collect();
            let end = directive.block.as_ref().map_or_else(|| ";".to_owned(), |block| format!("{{{}}}", shown(block)));
            format!("{}{args}{end}", directive.name)
        };
        directives.iter().map(one).collect()
    }

    fn read(text: &str) -> String {
        shown(&parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn words_quotes_and_escapes_are_read_as_nginx_reads_them() {
        for (text, expected) in [
            ("a;", "a;"),
            ("a b 'c d' \"e;f\";", "a <b> <c d> <e;f>;"),
            ("a 'it\\'s' \"\\\"q\\\"\" \\\\d \\t;", "a <it's> <\"q\"> <\\d> <\t>;"),
            ("a \\.php$ ~ ^/(x|y)$;", "a <\\.php$> <~> <^/(x|y)$>;"),
            ("a ${b}c x$d;", "a <${b}c> <x$d>;"),
            ("a b\\ c b\\;d;", "a <b\\ c> <b\\;d>;"),
            ("if ($a = \"b\") { c; }", "if <($a> <=> <b> <)>{c;}"),
            ("# c {\na; # ; }\nb#c d;", "a;b#c <d>;"),
            ("a\"b c;", "a\"b <c>;"),
            ("a \"\" '';", "a <> <>;"),
            ("location ~ \"^/\\d{3}$\" { a; }", "location <~> <^/\\d{3}$>{a;}"),
            ("a{b{c 1;}d;}e;", "a{b{c <1>;}d;}e;"),
            ("", ""),
            ("map $a $b { default x; ~*y z; }", "map <$a> <$b>{default <x>;~*y <z>;}"),
            ("a a}b;", "a <a}b>;"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn lua_blocks_are_skipped_whatever_they_hold() {
        for lua in [
            "ngx.say('}')",
            "local t = { a = { 1 } }",
            "-- a comment with }\n local a = 1",
            "--[[ } long \n } ]] local a",
            "--[==[ ]] } ]==] local a",
            "local s = [[ } ]] .. [=[ ]] } ]=]",
            "local s = \"\\\"}\" t[1] = a[b[2]]",
            "",
        ] {
            assert_eq!(read(&format!("content_by_lua_block {{ {lua} }} after 1;")), "content_by_lua_block{}after <1>;", "{lua}");
        }
        assert_eq!(read("set_by_lua_block $x { return 'a}' }b;"), "set_by_lua_block <$x>{}b;");
    }

    #[test]
    fn what_nginx_refuses_is_refused_with_its_line() {
        for (text, line) in [
            ("a", 1),
            ("a;\n}", 2),
            ("a {\n b;\n", 3),
            (";", 1),
            ("{", 1),
            ("a 'b", 1),
            ("a 'b'c;", 1),
            ("a { b }", 1),
            ("x_by_lua_block {\n {\n }", 3),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().line, line, "{text}");
        }
        let deep = "a{".repeat(DEPTH_LIMIT + 1);
        assert!(parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_span_covers_the_directive_as_written() {
        let text = "# c\nupstream a {\n server b; }\n c;";
        let directives = parse(text.as_bytes()).unwrap();
        assert_eq!(text.get(directives[0].span.clone()).unwrap(), "upstream a {\n server b; }");
        assert_eq!(directives[0].line, 2);
        assert_eq!(text.get(directives[1].span.clone()).unwrap(), "c;");
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _read = parse(&bytes);
        }

        #[test]
        fn random_configuration_text_never_panics(text in "[a-c ;{}'\"$#\\\\\n\\[\\]=-]{0,200}") {
            let _read = parse(text.as_bytes());
            let _read = parse(format!("x_by_lua_block {{ {text}").as_bytes());
        }

        #[test]
        fn a_quoted_word_reads_back(word in proptest::collection::vec(any::<char>(), 0..40)) {
            let word: String = word.into_iter().collect();
            let quoted = word.replace('\\', "\\\\").replace('"', "\\\"");
            let directives = parse(format!("a \"{quoted}\";").as_bytes()).unwrap();
            prop_assert_eq!(directives[0].args[0].text(), word);
        }
    }
}
