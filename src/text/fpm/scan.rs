//! Cuts one line of php-fpm's configuration language into tokens.
//!
//! php-fpm hands every physical line on its own to Zend's INI scanner in its normal mode. That scanner is a set of
//! regular rules for each state, the longest match wins, and among equals the first rule. The same is done here, rule
//! by rule, because the odd corners (a `$` swallows the byte behind it, a blank before `[` makes an array key) decide
//! what a file means. A NUL ends the input, yet bytes behind it still take part in a comment that has begun before it.
//!
//! Source: php-src `Zend/zend_ini_scanner.l`; checked against 8.2.36 by `tests/it/poolfiles.rs`.

use super::Dialect;

/// What a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// `[` at the start of a section.
    Section,
    /// `]`.
    Close,
    /// The name before `[` of an array key.
    Offset(Vec<u8>),
    /// The name of a scalar key.
    Label(Vec<u8>),
    /// `=`.
    Equals,
    /// A bare word, perhaps a constant's name.
    Word(Vec<u8>),
    /// Any other piece of text, quotes removed.
    Text(Vec<u8>),
    /// `"`.
    Quote,
    /// `${`.
    Dollar,
    /// The name in `${name}`.
    Variable(Vec<u8>),
    /// `:-` in `${name:-text}`.
    Fallback,
    /// `}` at the end of `${name}`.
    Brace,
    /// `yes`, `on`, `true`.
    Yes,
    /// `no`, `off`, `false`, `none`, `null`.
    No,
    /// The end of a value or of an empty line.
    EndOfLine,
    /// `|`, `&`, `^`, `~`, `!`, `(`, `)` in a value.
    Operator(u8),
    /// A byte that may not stand where it stands.
    Stray(u8),
    /// A single quote that is not closed on its line.
    OpenQuote,
    /// The end of the input.
    End,
}

/// One token and the bytes it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// What it is.
    pub(super) kind: Kind,
    /// Its first byte.
    pub(super) start: usize,
    /// The byte after its last.
    pub(super) end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Initial,
    Section,
    Offset,
    Value,
    Variable,
    Fallback,
    Quotes,
}

/// Cuts `line` (without its line end) into tokens; the last one is always [`Kind::End`].
pub(super) fn tokens(line: &[u8], dialect: Dialect) -> Vec<Token> {
    let mut bytes = line.to_vec();
    bytes.push(b'\n');
    let limit = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let mut scanner = Scanner { bytes: &bytes, limit, at: 0, states: vec![State::Initial], dialect };
    let mut found = Vec::new();
    loop {
        let start = scanner.at;
        let Some(kind) = scanner.step() else { continue };
        let last = matches!(kind, Kind::End | Kind::OpenQuote);
        found.push(Token { kind, start, end: scanner.at });
        if last {
            return found;
        }
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
    limit: usize,
    at: usize,
    states: Vec<State>,
    dialect: Dialect,
}

impl Scanner<'_> {
    fn state(&self) -> State {
        self.states.last().copied().unwrap_or(State::Initial)
    }

    fn begin(&mut self, state: State) {
        self.states.pop();
        self.states.push(state);
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    fn run(&self, from: usize, wanted: impl Fn(u8) -> bool) -> usize {
        self.bytes.get(from..).unwrap_or_default().iter().take_while(|byte| wanted(**byte)).count()
    }

    fn blanks(&self, from: usize) -> usize {
        self.run(from, is_blank)
    }

    fn newline(&self, at: usize) -> usize {
        match (self.byte(at), self.byte(at + 1)) {
            (Some(b'\r'), Some(b'\n')) => 2,
            (Some(b'\r' | b'\n'), _) => 1,
            _ => 0,
        }
    }

    fn text(&self, start: usize, end: usize) -> Vec<u8> {
        self.bytes.get(start..end).unwrap_or_default().to_vec()
    }

    /// Takes `length` bytes and gives `kind`.
    fn take(&mut self, length: usize, kind: Kind) -> Option<Kind> {
        self.at += length;
        Some(kind)
    }

    /// Gives the next token, `None` when only blanks or a byte order mark were passed over.
    fn step(&mut self) -> Option<Kind> {
        if self.at >= self.limit {
            if self.state() == State::Value {
                self.begin(State::Initial);
                return Some(Kind::EndOfLine);
            }
            return Some(Kind::End);
        }
        if self.at == 0 && self.limit > 3 && self.bytes.starts_with(b"\xef\xbb\xbf") {
            self.at = 3;
            return None;
        }
        match self.state() {
            State::Initial => self.initial(),
            State::Section => self.bracketed(State::Section),
            State::Offset => self.bracketed(State::Offset),
            State::Value => self.value(),
            State::Variable => self.variable(),
            State::Fallback => self.fallback(),
            State::Quotes => self.quoted(),
        }
    }

    fn label(&self, from: usize) -> usize {
        self.run(from, is_label)
    }

    /// The length of a comment with the blanks before it, 0 where there is none.
    fn comment(&self) -> usize {
        let semicolon = self.at + self.blanks(self.at);
        if self.byte(semicolon) != Some(b';') {
            return 0;
        }
        let end = semicolon + self.run(semicolon, |byte| byte != b'\r' && byte != b'\n');
        end + self.newline(end) - self.at
    }

    /// The length of a line end with the blanks before it.
    fn line_end(&self) -> usize {
        let blanks = self.blanks(self.at);
        match self.newline(self.at + blanks) {
            0 => 0,
            length => blanks + length,
        }
    }

    fn initial(&mut self) -> Option<Kind> {
        let label = self.label(self.at);
        let offset = match self.byte(self.at + label) {
            Some(b'[') if label > 0 => label + 1 + self.blanks(self.at + label + 1),
            _ => 0,
        };
        let (word, word_kind) = self.literal();
        let blanks = self.blanks(self.at);
        let equals = match self.byte(self.at + blanks) {
            Some(b'=') => blanks + 1 + self.blanks(self.at + blanks + 1),
            _ => 0,
        };
        let open = usize::from(self.byte(self.at) == Some(b'['));
        let token = usize::from(self.byte(self.at).is_some_and(|byte| b":,.[]\"'()&|^+-/*=%$!~<>?@{}".contains(&byte)));
        let start = self.at;
        match longest(&[open, offset, word, label, equals, token, blanks, self.line_end(), self.comment()]) {
            Some((0, length)) => {
                self.begin(State::Section);
                self.take(length, Kind::Section)
            }
            Some((1, length)) => {
                self.begin(State::Offset);
                self.take(length, Kind::Offset(trimmed(&self.text(start, start + label), b'[')))
            }
            Some((2, length)) => self.take(length, word_kind),
            Some((3, length)) => self.take(length, Kind::Label(trimmed(&self.text(start, start + label), b' '))),
            Some((4, length)) => {
                self.begin(State::Value);
                self.take(length, Kind::Equals)
            }
            Some((5, length)) => self.take(length, Kind::Stray(self.byte(start).unwrap_or_default())),
            Some((6, length)) => {
                self.at += length;
                None
            }
            Some((_, length)) => self.take(length, Kind::EndOfLine),
            None => self.stop(),
        }
    }

    /// Ends the input at a byte no rule takes.
    fn stop(&mut self) -> Option<Kind> {
        let open = self.byte(self.at) == Some(b'\'');
        self.at = self.limit;
        Some(if open { Kind::OpenQuote } else { Kind::End })
    }

    /// `yes`, `off`, `null` and their kin, in any case, with the blanks behind.
    fn literal(&self) -> (usize, Kind) {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let mut best = (0, Kind::No);
        for (word, kind) in [
            ("true", Kind::Yes),
            ("on", Kind::Yes),
            ("yes", Kind::Yes),
            ("false", Kind::No),
            ("off", Kind::No),
            ("no", Kind::No),
            ("none", Kind::No),
            ("null", Kind::No),
        ] {
            if rest.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word.as_bytes())) {
                let length = word.len() + self.blanks(self.at + word.len());
                if length > best.0 {
                    best = (length, kind);
                }
            }
        }
        best
    }

    /// The length of `'…'`; an empty or unclosed pair, or one round a NUL, is none.
    fn single_quoted(&self) -> usize {
        if self.byte(self.at) != Some(b'\'') {
            return 0;
        }
        let inner = self.run(self.at + 1, |byte| byte != b'\'');
        let closed = self.at + 1 + inner < self.limit && self.byte(self.at + 1 + inner) == Some(b'\'');
        if inner > 0 && closed { inner + 2 } else { 0 }
    }

    fn dollar(&self) -> usize {
        if self.byte(self.at) == Some(b'$') && self.byte(self.at + 1) == Some(b'{') { 2 } else { 0 }
    }

    fn word(&self) -> usize {
        match self.byte(self.at) {
            Some(byte) if byte.is_ascii_alphabetic() || byte == b'_' => {
                self.run(self.at, |byte| byte.is_ascii_alphanumeric() || byte == b'_')
            }
            _ => 0,
        }
    }

    /// The length of a double quote with the blanks before it.
    fn quote(&self) -> usize {
        let blanks = self.blanks(self.at);
        if self.byte(self.at + blanks) == Some(b'"') { blanks + 1 } else { 0 }
    }

    /// The longest run of plain bytes, of `$` with the byte behind it (`$\x` with two), and of escaped pairs.
    fn plain(&self, wanted: impl Fn(u8) -> bool, escapes: Escapes) -> usize {
        // Which of the next four positions the rules can reach: they overlap, so the longest way is not the greedy one.
        let mut ahead = [true, false, false, false];
        let mut longest = 0;
        let mut at = self.at;
        loop {
            let [here, mut one, mut two, mut three] = ahead;
            if !here && !one && !two && !three {
                return longest;
            }
            if here {
                longest = at - self.at;
                match (self.byte(at), self.byte(at + 1), self.byte(at + 2)) {
                    (Some(b'$'), Some(next), after) => {
                        two |= next != b'{' && next != 0;
                        three |= next == b'\\' && after.is_some();
                    }
                    (Some(b'\\'), Some(_), _) if escapes == Escapes::Taken => two = true,
                    (Some(byte), ..) => one |= byte != b'$' && wanted(byte),
                    _ => {}
                }
            }
            ahead = [one, two, three, false];
            at += 1;
        }
    }

    fn value(&mut self) -> Option<Kind> {
        let raw = self.single_quoted();
        let (literal, literal_kind) = self.literal();
        let operator = match self.byte(self.at) {
            Some(byte) if b"&|^~()!".contains(&byte) => 1 + self.blanks(self.at + 1),
            _ => 0,
        };
        let equals = usize::from(self.byte(self.at) == Some(b'='));
        let plain = self.plain(|byte| !b"= \t\n\r;&|^~()!\"'\0".contains(&byte), Escapes::Plain);
        let (word, quote, blanks) = (self.word(), self.quote(), self.blanks(self.at));
        let (dollar, line_end, comment) = (self.dollar(), self.line_end(), self.comment());
        let start = self.at;
        match longest(&[raw, dollar, literal, line_end, word, operator, equals, plain, quote, blanks, comment]) {
            Some((0, length)) => self.take(length, Kind::Text(self.text(start + 1, start + length - 1))),
            Some((1, length)) => self.push(State::Variable, length, Kind::Dollar),
            Some((2, length)) => self.take(length, literal_kind),
            Some((3 | 10, length)) => {
                self.begin(State::Initial);
                self.take(length, Kind::EndOfLine)
            }
            Some((4, length)) => self.take(length, Kind::Word(self.text(start, start + length))),
            Some((5, length)) => self.take(length, Kind::Operator(self.byte(start).unwrap_or_default())),
            Some((6, length)) => self.take(length, Kind::Stray(b'=')),
            Some((7 | 9, length)) => self.take(length, Kind::Text(self.text(start, start + length))),
            Some((_, length)) => self.push(State::Quotes, length, Kind::Quote),
            // php-fpm takes the byte as the end of the value and goes on with whatever its buffer holds behind it.
            None if self.byte(start) == Some(b'\'') => self.stop(),
            None => {
                self.begin(State::Initial);
                self.take(1, Kind::EndOfLine)
            }
        }
    }

    fn push(&mut self, state: State, length: usize, kind: Kind) -> Option<Kind> {
        self.states.push(state);
        self.take(length, kind)
    }

    fn bracketed(&mut self, state: State) -> Option<Kind> {
        let raw = self.single_quoted();
        let blanks = if state == State::Offset { self.blanks(self.at) } else { 0 };
        let close = match self.byte(self.at + blanks) {
            Some(b']') if state == State::Offset => blanks + 1,
            Some(b']') => {
                let after = 1 + self.blanks(self.at + 1);
                after + self.newline(self.at + after)
            }
            _ => 0,
        };
        let plain = self.plain(|byte| !b"\n\r;\"']\\".contains(&byte), Escapes::Taken);
        let (dollar, word, quote) = (self.dollar(), self.word(), self.quote());
        let start = self.at;
        match longest(&[raw, close, dollar, word, plain, quote]) {
            Some((0, length)) => self.take(length, Kind::Text(self.text(start + 1, start + length - 1))),
            Some((1, length)) => {
                self.begin(State::Initial);
                self.take(length, Kind::Close)
            }
            Some((2, length)) => self.push(State::Variable, length, Kind::Dollar),
            Some((3, length)) => self.take(length, Kind::Word(self.text(start, start + length))),
            Some((4, length)) => self.take(length, Kind::Text(self.text(start, start + length))),
            Some((_, length)) => self.push(State::Quotes, length, Kind::Quote),
            None => self.stop(),
        }
    }

    fn variable(&mut self) -> Option<Kind> {
        let start = self.at;
        if self.byte(start) == Some(b'}') {
            self.states.pop();
            return self.take(1, Kind::Brace);
        }
        let fallback = |at: usize| self.dialect.fallbacks && self.byte(at) == Some(b':') && self.byte(at + 1) == Some(b'-');
        if fallback(start) {
            self.begin(State::Fallback);
            return self.take(2, Kind::Fallback);
        }
        let mut end = start;
        while self.byte(end).is_some_and(is_label) && !fallback(end) {
            end += 1;
        }
        if end == start {
            return self.stop();
        }
        self.take(end - start, Kind::Variable(trimmed(&self.text(start, end), b' ')))
    }

    fn fallback(&mut self) -> Option<Kind> {
        let brace = usize::from(self.byte(self.at) == Some(b'}'));
        let plain = self.plain(|byte| !b"\n\r;\"'}\\".contains(&byte), Escapes::Taken);
        let (dollar, word, quote) = (self.dollar(), self.word(), self.quote());
        let start = self.at;
        match longest(&[dollar, brace, word, plain, quote]) {
            Some((0, length)) => self.push(State::Variable, length, Kind::Dollar),
            Some((1, length)) => {
                self.states.pop();
                self.take(length, Kind::Brace)
            }
            Some((2, length)) => self.take(length, Kind::Word(self.text(start, start + length))),
            Some((3, length)) => self.take(length, Kind::Text(self.text(start, start + length))),
            Some((_, length)) => self.push(State::Quotes, length, Kind::Quote),
            None => self.stop(),
        }
    }

    fn quoted(&mut self) -> Option<Kind> {
        if self.dollar() > 0 {
            return self.push(State::Variable, 2, Kind::Dollar);
        }
        if self.byte(self.at) == Some(b'"') {
            self.states.pop();
            return self.take(1 + self.blanks(self.at + 1), Kind::Quote);
        }
        let mut at = self.at;
        while at < self.limit {
            let next = if at + 1 < self.limit { self.byte(at + 1) } else { None };
            match (self.byte(at), next) {
                (Some(b'"'), _) | (Some(b'$'), Some(b'{')) => break,
                (Some(b'\\'), Some(escaped)) => {
                    at += 2;
                    // A quote that is escaped by the last backslash of the line closes the string: `"C:\"`.
                    if escaped == b'"' && (at >= self.limit || matches!(self.byte(at), Some(b'\r' | b'\n'))) {
                        at -= 1;
                        break;
                    }
                }
                _ => at += 1,
            }
        }
        let text = unescaped(&self.text(self.at, at));
        self.take(at - self.at, Kind::Text(text))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escapes {
    /// A backslash is a byte like any other.
    Plain,
    /// A backslash takes the byte behind it along.
    Taken,
}

/// Gives the first of the longest matches: its rule and its length.
fn longest(lengths: &[usize]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for (rule, length) in lengths.iter().enumerate() {
        if *length > best.map_or(0, |(_, longest)| longest) {
            best = Some((rule, *length));
        }
    }
    best
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn is_label(byte: u8) -> bool {
    !b"=\n\r\t;&|^$~(){}!\"[]\0".contains(&byte)
}

/// Takes blanks off both ends, and `extra` off the end.
fn trimmed(text: &[u8], extra: u8) -> Vec<u8> {
    let start = text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len());
    let rest = text.get(start..).unwrap_or_default();
    let end = rest.iter().rposition(|byte| !is_blank(*byte) && *byte != extra).map_or(0, |last| last + 1);
    rest.get(..end).unwrap_or_default().to_vec()
}

/// Replaces the escapes of a double-quoted string.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, if byte == b'\\' { bytes.next() } else { None }) {
            (b'\\', Some(escaped @ (b'"' | b'\\' | b'$'))) => out.push(escaped),
            (b'\\', Some(other)) => out.extend([b'\\', other]),
            (other, _) => out.push(other),
        }
    }
    out
}
