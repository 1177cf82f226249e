//! Puts the tokens of one line together: sections, entries, array entries, with their values worked out.
//!
//! The grammar is Zend's: a line is any number of statements, a value is one word of truth or an expression in which
//! `|`, `&` and `^` have the same rank, bind to the left, and are weaker than `~` and `!`.
//!
//! Source: php-src `Zend/zend_ini_parser.y`; checked against 8.2.36 by `tests/it/poolfiles.rs`.

#![expect(clippy::wildcard_enum_match_arm, reason = "a parser names what may come next; everything else is a fault")]

use super::scan::{Kind, Token, tokens};
use super::{Dialect, Lookups};

/// What a statement says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    /// `[name]`.
    Section(Vec<u8>),
    /// `key = value`.
    Entry(Vec<u8>, Vec<u8>),
    /// `key[element] = value`.
    Element(Vec<u8>, Vec<u8>, Vec<u8>),
    /// A key without `=`.
    Bare(Vec<u8>),
}

/// A statement and the bytes of the line that make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    /// What it says.
    pub(super) statement: Statement,
    /// Its first byte.
    pub(super) start: usize,
    /// The byte after its last.
    pub(super) end: usize,
    /// The first byte of its value.
    pub(super) value: usize,
}

/// Says why a line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// What is wrong.
    pub(super) message: String,
    /// What to do.
    pub(super) remedy: Option<&'static str>,
    /// The bytes at fault.
    pub(super) columns: (usize, usize),
    /// Whether the line was going to be a section header.
    pub(super) in_section: bool,
}

/// Reads one line, without its line end.
pub(super) fn statements(line: &[u8], dialect: Dialect, lookups: &mut Lookups<'_>) -> Result<Vec<Said>, Fault> {
    let tokens = tokens(line, dialect);
    let mut parser = Parser { tokens: &tokens, at: 0, lookups, depth: 0 };
    let mut said = Vec::new();
    while let Some(one) = parser.statement()? {
        said.push(one);
    }
    Ok(said)
}

/// Deeper nesting of parentheses and signs than this is refused: php-fpm's own parser gives up at 10,000 symbols.
const DEPTH_LIMIT: u32 = 500;

struct Parser<'a, 'b, 'c> {
    tokens: &'a [Token],
    at: usize,
    lookups: &'b mut Lookups<'c>,
    depth: u32,
}

impl Parser<'_, '_, '_> {
    fn peek(&self) -> &Kind {
        self.tokens.get(self.at).map_or(&Kind::End, |token| &token.kind)
    }

    fn start(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.start)
    }

    fn ended(&self) -> usize {
        self.tokens.get(self.at.saturating_sub(1)).map_or(0, |token| token.end)
    }

    fn advance(&mut self) {
        self.at += 1;
    }

    fn statement(&mut self) -> Result<Option<Said>, Fault> {
        while *self.peek() == Kind::EndOfLine {
            self.advance();
        }
        let start = self.start();
        let mut value = start;
        let statement = match self.peek().clone() {
            Kind::End => return Ok(None),
            Kind::Section => {
                self.advance();
                let name = self.list(Constants::Kept).map_err(in_section)?.unwrap_or_default();
                self.close().map_err(in_section)?;
                Statement::Section(name)
            }
            Kind::Label(name) => {
                self.advance();
                if *self.peek() != Kind::Equals {
                    return Ok(Some(Said { statement: Statement::Bare(name), start, end: self.ended(), value }));
                }
                self.advance();
                value = self.start();
                Statement::Entry(name, self.value()?)
            }
            Kind::Offset(name) => {
                let blank = name.is_empty();
                self.advance();
                self.element(name, &mut value).map_err(|fault| if blank { blank_before_section(fault) } else { fault })?
            }
            _ => return Err(self.unexpected()),
        };
        Ok(Some(Said { statement, start, end: self.ended(), value }))
    }

    fn element(&mut self, name: Vec<u8>, value: &mut usize) -> Result<Statement, Fault> {
        let element = self.list(Constants::Replaced)?.unwrap_or_default();
        self.close()?;
        if *self.peek() != Kind::Equals {
            return Err(self.unexpected());
        }
        self.advance();
        *value = self.start();
        Ok(Statement::Element(name, element, self.value()?))
    }

    fn close(&mut self) -> Result<(), Fault> {
        if *self.peek() != Kind::Close {
            return Err(self.unexpected());
        }
        self.advance();
        Ok(())
    }

    fn value(&mut self) -> Result<Vec<u8>, Fault> {
        let value = match self.peek() {
            Kind::Yes => b"1".to_vec(),
            Kind::No | Kind::EndOfLine => Vec::new(),
            _ => return self.expression(),
        };
        self.advance();
        Ok(value)
    }

    fn expression(&mut self) -> Result<Vec<u8>, Fault> {
        let mut left = self.operand()?;
        while let Kind::Operator(sign @ (b'|' | b'&' | b'^')) = *self.peek() {
            self.advance();
            let right = self.operand()?;
            let (a, b) = (integer(&left), integer(&right));
            let result = match sign {
                b'|' => a | b,
                b'&' => a & b,
                _ => a ^ b,
            };
            left = result.to_string().into_bytes();
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<Vec<u8>, Fault> {
        let Kind::Operator(sign) = *self.peek() else {
            return self.list(Constants::Replaced)?.ok_or_else(|| self.unexpected());
        };
        self.depth += 1;
        if !matches!(sign, b'~' | b'!' | b'(') || self.depth > DEPTH_LIMIT {
            return Err(self.unexpected());
        }
        self.advance();
        let value = if sign == b'(' {
            let inner = self.expression()?;
            if *self.peek() != Kind::Operator(b')') {
                return Err(self.unexpected());
            }
            self.advance();
            inner
        } else {
            let operand = integer(&self.operand()?);
            let result = if sign == b'~' { !operand } else { i32::from(operand == 0) };
            result.to_string().into_bytes()
        };
        self.depth -= 1;
        Ok(value)
    }

    /// Reads pieces of text that stand side by side; `None` where there is none.
    fn list(&mut self, constants: Constants) -> Result<Option<Vec<u8>>, Fault> {
        let mut whole: Option<Vec<u8>> = None;
        loop {
            let piece = match self.peek().clone() {
                Kind::Word(word) if constants == Constants::Replaced => {
                    self.advance();
                    self.lookups.constant(word)
                }
                Kind::Word(text) | Kind::Text(text) => {
                    self.advance();
                    text
                }
                Kind::Quote => self.encapsed()?,
                Kind::Dollar => self.reference()?,
                _ => return Ok(whole),
            };
            whole.get_or_insert_default().extend(piece);
        }
    }

    fn encapsed(&mut self) -> Result<Vec<u8>, Fault> {
        self.advance();
        let mut text = Vec::new();
        loop {
            match self.peek().clone() {
                Kind::Text(piece) => {
                    text.extend(piece);
                    self.advance();
                }
                Kind::Dollar => text.extend(self.reference()?),
                Kind::Quote => {
                    self.advance();
                    return Ok(text);
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    fn reference(&mut self) -> Result<Vec<u8>, Fault> {
        self.advance();
        let Kind::Variable(name) = self.peek().clone() else { return Err(self.unexpected()) };
        self.advance();
        let mut fallback = None;
        if *self.peek() == Kind::Fallback {
            self.depth += 1;
            if self.depth > DEPTH_LIMIT {
                return Err(self.unexpected());
            }
            self.advance();
            fallback = Some(self.list(Constants::Replaced)?.unwrap_or_default());
            self.depth -= 1;
        }
        if *self.peek() != Kind::Brace {
            return Err(self.unexpected());
        }
        self.advance();
        Ok(self.lookups.variable(&name, fallback))
    }

    fn unexpected(&self) -> Fault {
        let columns = self.tokens.get(self.at).map_or((0, 0), |token| (token.start, token.end));
        let quote = self.tokens.iter().take(self.at).filter(|token| token.kind == Kind::Quote).count() % 2 == 1;
        let (message, remedy) = match self.peek() {
            Kind::OpenQuote => (
                "syntax error, a single quote is not closed, or holds nothing".into(),
                Some("close it on the same line, or use double quotes"),
            ),
            Kind::End if quote => {
                ("syntax error, unexpected end of file, expecting '\"'".into(), Some("close the double quote on the same line"))
            }
            Kind::End | Kind::EndOfLine => ("syntax error, unexpected end of file".into(), None),
            Kind::Operator(sign) | Kind::Stray(sign) => {
                (format!("syntax error, unexpected '{}'", char::from(*sign)), Some("put the value in double quotes"))
            }
            Kind::Yes | Kind::No => ("syntax error, unexpected word of truth".into(), Some("put the whole value in double quotes")),
            _ => ("syntax error".into(), Some("put the value in double quotes")),
        };
        Fault { message, remedy, columns, in_section: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Constants {
    Replaced,
    Kept,
}

fn in_section(fault: Fault) -> Fault {
    Fault { remedy: Some("write the section as [name] on a line of its own"), in_section: true, ..fault }
}

fn blank_before_section(fault: Fault) -> Fault {
    Fault { remedy: Some("remove the space before '['"), in_section: true, ..fault }
}

/// Reads a number as C's `atoi` does: blanks, a sign, digits; the rest is ignored, what is too big wraps.
pub(super) fn integer(text: &[u8]) -> i32 {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let mut number: i64 = 0;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        let digit = i64::from(digit - b'0');
        number = number.saturating_mul(10);
        number = if negative { number.saturating_sub(digit) } else { number.saturating_add(digit) };
    }
    #[expect(clippy::cast_possible_truncation, reason = "C's atoi cuts a long to an int in the same way")]
    let cut = number as i32;
    cut
}
