//! How an expression is read: its words and signs, and what may follow which.

use netacc_stats::{Reason, State, Transport};

use super::{Comparison, End, Filter, Mistake, Network, Test, number_of_port};
use crate::args::who::Who;
use crate::text::clean;

/// Reads a whole expression.
pub(super) fn expression(line: &str) -> Result<Filter, Mistake> {
    let mut reader = Reader { tokens: tokens(line), next: 0, line, depth: 0 };
    let filter = reader.any()?;
    match reader.peek() {
        None => Ok(filter),
        Some(token) => Err(reader.wrong(reader.next, &format!("\"{}\" is not expected here", clean(token)))),
    }
}

/// Each word or sign of the line, with its place.
fn tokens(line: &str) -> Vec<(usize, &str)> {
    const SIGNS: [&str; 13] = ["==", "!=", "<=", ">=", "&&", "||", "(", ")", "=", "<", ">", "&", "|"];
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = line.get(at..).filter(|rest| !rest.is_empty()) {
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let len = if rest.starts_with(char::is_whitespace) {
            at += first;
            continue;
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            sign.len()
        } else if rest.starts_with('!') {
            1
        } else {
            rest.find(|c: char| c.is_whitespace() || "()=<>!&|".contains(c)).unwrap_or(rest.len())
        };
        found.push((at, rest.get(..len).unwrap_or(rest)));
        at += len;
    }
    found
}

/// Deepest nesting of an expression.
const DEEPEST: usize = 32;

struct Reader<'a> {
    tokens: Vec<(usize, &'a str)>,
    next: usize,
    line: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).map(|(_, token)| *token)
    }

    fn take(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.next += 1;
        Some(token)
    }

    /// A mistake at the token of this number, or at the end.
    fn wrong(&self, token: usize, text: &str) -> Mistake {
        let at = self.tokens.get(token).map_or(self.line.len(), |(at, _)| *at);
        Mistake { line: self.line.to_owned(), at, text: text.to_owned() }
    }

    fn any(&mut self) -> Result<Filter, Mistake> {
        let mut any = vec![self.all()?];
        while matches!(self.peek(), Some("or" | "||" | "|")) {
            self.next += 1;
            any.push(self.all()?);
        }
        Ok(one_or(any, Filter::Any))
    }

    /// Tests that follow each other have to hold together, with a word between them or without.
    fn all(&mut self) -> Result<Filter, Mistake> {
        let mut all = vec![self.one()?];
        loop {
            match self.peek() {
                None | Some("or" | "||" | "|" | ")") => return Ok(one_or(all, Filter::All)),
                Some("and" | "&&" | "&") => self.next += 1,
                Some(_) => {}
            }
            all.push(self.one()?);
        }
    }

    fn one(&mut self) -> Result<Filter, Mistake> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.wrong(self.next, "it is nested too deeply"));
        }
        let filter = match self.take() {
            Some("not" | "!") => Filter::Not(Box::new(self.one()?)),
            Some("(") => {
                let inner = self.any()?;
                match self.take() {
                    Some(")") => inner,
                    _ => return Err(self.wrong(self.next, "a \")\" is missing")),
                }
            }
            word => self.test(word)?,
        };
        self.depth -= 1;
        Ok(filter)
    }

    fn test(&mut self, word: Option<&str>) -> Result<Filter, Mistake> {
        let test = match word {
            Some("state") => Test::State(self.value("a state", state)?),
            Some("exclude" | "excl") => {
                return Ok(Filter::Not(Box::new(Filter::Test(Test::State(self.value("a state", state)?)))));
            }
            Some("sport") => self.port(End::Local)?,
            Some("dport") => self.port(End::Peer)?,
            Some("src") => {
                return self.equal("an address", |text| Network::parse(text).map(|n| Test::Address(End::Local, n)));
            }
            Some("dst") => {
                return self.equal("an address", |text| Network::parse(text).map(|n| Test::Address(End::Peer, n)));
            }
            Some("transport") => return self.equal("tcp, shm or rdma", |text| transport(text).map(Test::Transport)),
            Some("reason") => return self.equal("a reason", |text| reason(text).map(Test::Reason)),
            Some("program") => {
                return self.equal("the name of a program", |text| Who::parse(text).ok().map(Test::Program));
            }
            _ => {
                let wanted = "state, exclude, sport, dport, src, dst, transport, reason, program, not or \"(\"";
                let at = self.next - usize::from(word.is_some());
                return Err(self.wrong(at, &format!("expected {wanted}")));
            }
        };
        Ok(Filter::Test(test))
    }

    fn port(&mut self, end: End) -> Result<Test, Mistake> {
        let comparison = self.comparison();
        let named = |text: &str| number_of_port(text.strip_prefix(':').unwrap_or(text)).ok();
        Ok(Test::Port(end, comparison, self.value("a port", named)?))
    }

    /// A comparison that is left out is one for equality.
    fn comparison(&mut self) -> Comparison {
        let named = self.peek().and_then(Comparison::named);
        self.next += usize::from(named.is_some());
        named.unwrap_or(Comparison::Equal)
    }

    /// A test for something that can be equal or unequal only.
    fn equal(&mut self, what: &str, read: impl Fn(&str) -> Option<Test>) -> Result<Filter, Mistake> {
        let at = self.next;
        let comparison = self.comparison();
        let test = Filter::Test(self.value(what, read)?);
        match comparison {
            Comparison::Equal => Ok(test),
            Comparison::Unequal => Ok(Filter::Not(Box::new(test))),
            _ => Err(self.wrong(at, "only = and != are possible here")),
        }
    }

    fn value<T>(&mut self, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, Mistake> {
        let at = self.next;
        self.take().and_then(read).ok_or_else(|| self.wrong(at, &format!("expected {what}{}", choices(what))))
    }
}

/// One filter as it is, several joined.
fn one_or(mut all: Vec<Filter>, join: fn(Vec<Filter>) -> Filter) -> Filter {
    match (all.pop(), all.is_empty()) {
        (Some(last), true) => last,
        (Some(last), false) => {
            all.push(last);
            join(all)
        }
        (None, _) => join(all),
    }
}

pub(super) const STATES: [(&str, &[State]); 14] = [
    ("all", &[State::New, State::Connecting, State::Listening, State::Established, State::Closing]),
    ("connected", &[State::Connecting, State::Established, State::Closing]),
    ("synchronized", &[State::Established, State::Closing]),
    ("established", &[State::Established]),
    ("estab", &[State::Established]),
    ("listening", &[State::Listening]),
    ("listen", &[State::Listening]),
    ("connecting", &[State::Connecting]),
    ("syn-sent", &[State::Connecting]),
    ("closing", &[State::Closing]),
    ("new", &[State::New]),
    ("unconnected", &[State::New]),
    ("closed", &[State::New]),
    ("close", &[State::New]),
];

fn state(text: &str) -> Option<&'static [State]> {
    STATES.into_iter().find(|(name, _)| *name == text).map(|(_, states)| states)
}

fn transport(text: &str) -> Option<Transport> {
    [Transport::Tcp, Transport::Shm, Transport::Rdma].into_iter().find(|of| of.name().eq_ignore_ascii_case(text))
}

fn reason(text: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.name() == text)
}

/// What is possible, where that is a list.
fn choices(what: &str) -> String {
    let names: Vec<&str> = match what {
        "a state" => STATES.iter().map(|(name, _)| *name).collect(),
        "a reason" => Reason::ALL.iter().map(|reason| reason.name()).collect(),
        "a port" => return ", from 0 to 65535 or the name of a service".into(),
        "an address" => return " of IPv4 or IPv6, which may end in /LENGTH and in :PORT".into(),
        _ => return String::new(),
    };
    format!(": {}", names.join(", "))
}
