//! The rules of the section `[rules]`: which programs, listeners and connects use which transports.
//!
//! A rule is a line `use=TRANSPORTS [program=NAME] [listen=ENDPOINT | connect=ENDPOINT]`. The first rule that matches
//! decides; where none matches, `NACC_ENABLE_RDMA_DEFAULT` does. netacc.conf(5) describes the words.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use crate::diagnostic::Quoted;
use crate::matcher::{Endpoint, Matcher, Subject, Transports};

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The number of its line in the configuration file, counted from 1.
    pub line: u32,
    /// The words of the rule, as in the file.
    pub text: String,
    /// The calls that the rule covers, and the transports that it permits.
    pub matcher: Matcher,
    /// The name of the program; one that ends with `*` stands for all names that begin like that. `None`: every
    /// program.
    program: Option<String>,
}

impl Rule {
    /// Whether the rule is for a program with one of these names.
    #[must_use]
    pub fn is_for(&self, names: &[&[u8]]) -> bool {
        let Some(wanted) = &self.program else { return true };
        names.iter().any(|name| match wanted.strip_suffix('*') {
            Some(start) => name.starts_with(start.as_bytes()),
            None => *name == wanted.as_bytes(),
        })
    }
}

/// The rules of a configuration file, or of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// The most rules that are kept, since every connect compares them one by one.
    pub const MAX: usize = 64;

    /// The longest text of a rule in bytes.
    const MAX_RULE: usize = 256;

    /// The rules, in the order in which they are tried.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.0
    }

    /// What the rules cover and permit, in the same order.
    pub fn matchers(&self) -> impl Iterator<Item = Matcher> + Clone {
        self.0.iter().map(|rule| rule.matcher)
    }

    /// Keeps the rules that are for a program with one of these names, and drops the others.
    pub fn keep_for(&mut self, names: &[&[u8]]) {
        self.0.retain(|rule| rule.is_for(names));
    }

    /// Appends the rule of one line, `KEY=VALUE`, or says what is wrong with it and what is allowed.
    pub(crate) fn add(&mut self, line: u32, key: &[u8], value: &[u8]) -> Result<(), String> {
        if !key.eq_ignore_ascii_case(b"use") {
            let allowed = "allowed: use=TRANSPORTS [program=NAME] [listen=ENDPOINT | connect=ENDPOINT]";
            return Err(format!("a rule cannot begin with {}; {allowed}", Quoted(key)));
        }
        let text = core::str::from_utf8(value).map_err(|_| format!("{} is not UTF-8", Quoted(value)))?;
        if text.len() > Self::MAX_RULE {
            return Err(format!("the rule has {} bytes; allowed: {}", text.len(), Self::MAX_RULE));
        }
        if self.0.len() >= Self::MAX {
            return Err(format!("there are more than {} rules; allowed: {0}", Self::MAX));
        }
        self.0.push(parse(line, text)?);
        Ok(())
    }
}

/// Parses the text of a rule after `use=`.
fn parse(line: u32, text: &str) -> Result<Rule, String> {
    let mut words = text.split_ascii_whitespace();
    let transports = transports(words.next().unwrap_or(""))?;
    let mut program = None;
    let mut subject = Subject::Everything;
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key.to_ascii_lowercase().as_str() {
            "program" if program.is_some() => return Err("program= occurs twice; allowed: once".to_owned()),
            "program" if value.is_empty() || value.contains('/') => {
                return Err(format!(
                    "program={} is not a program's name; allowed: a file name without \"/\"",
                    Quoted(value.as_bytes())
                ));
            }
            "program" => program = Some(value.to_owned()),
            "listen" | "connect" if subject != Subject::Everything => {
                return Err("there is more than one listen= or connect=; allowed: one of them, once".to_owned());
            }
            "listen" => subject = Subject::Listen(endpoint(value)?),
            "connect" => subject = Subject::Connect(endpoint(value)?),
            _ => {
                return Err(format!(
                    "{} is unknown; allowed: program=NAME, listen=ENDPOINT, connect=ENDPOINT",
                    Quoted(word.as_bytes())
                ));
            }
        }
    }
    Ok(Rule { line, text: format!("use={text}"), matcher: Matcher { subject, transports }, program })
}

fn transports(list: &str) -> Result<Transports, String> {
    let mut found = Transports::TCP;
    for name in list.split(',') {
        match name.to_ascii_lowercase().as_str() {
            "shm" => found.shm = true,
            "rdma" => found.rdma = true,
            "tcp" => {}
            _ => {
                return Err(format!(
                    "use={} names no transports; allowed: shm, rdma, tcp, or several with commas",
                    Quoted(list.as_bytes())
                ));
            }
        }
    }
    Ok(found)
}

/// Parses `PORTS`, `ADDRESS`, `ADDRESS:PORTS` or `*:PORTS`. An address may have `/BITS`; an IPv6 address with ports
/// must be in brackets.
fn endpoint(text: &str) -> Result<Endpoint, String> {
    let wrong = || {
        format!(
            "{} is not an endpoint; allowed: PORT, FIRST-LAST, ADDRESS, ADDRESS/BITS, each of these with :PORT, [IPV6/BITS]:PORT",
            Quoted(text.as_bytes())
        )
    };
    const EVERY_PORT: (u16, u16) = (0, u16::MAX);
    if let Some(ports) = ports(text) {
        return Ok(Endpoint { prefix: None, ports });
    }
    if let Some(prefix) = prefix(text) {
        return Ok(Endpoint { prefix: Some(prefix), ports: EVERY_PORT });
    }
    let (address, ports) = match text.rsplit_once(':') {
        Some((address, rest)) if !rest.ends_with(']') => (address, ports(rest).ok_or_else(wrong)?),
        _ => (text, EVERY_PORT),
    };
    let bracketed = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let prefix = match (address, bracketed) {
        ("*", None) => None,
        ("", None) if !text.is_empty() => None,
        (_, Some(inner)) => Some(prefix(inner).filter(|(ip, _)| ip.is_ipv6()).ok_or_else(wrong)?),
        (address, None) => Some(prefix(address).filter(|(ip, _)| ip.is_ipv4()).ok_or_else(wrong)?),
    };
    Ok(Endpoint { prefix, ports })
}

/// Parses `PORT` or `FIRST-LAST`.
fn ports(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first <= last).then_some((first, last))
}

/// Parses `ADDRESS` or `ADDRESS/BITS`.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let ip: IpAddr = address.parse().ok()?;
    let width: u8 = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => width,
        Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => bits.parse().ok().filter(|bits| *bits <= width)?,
        Some(_) => return None,
    };
    // An IPv4-mapped IPv6 address is compared as IPv4.
    match (ip, ip.to_canonical()) {
        (IpAddr::V6(_), v4 @ IpAddr::V4(_)) => Some((v4, bits.checked_sub(96)?)),
        (ip, _) => Some((ip, bits)),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_prefixes_at_their_ends() {
        let at = |text: &str| endpoint(text).unwrap();
        assert!(at("0.0.0.0/0").contains("255.255.255.255:65535".parse().unwrap()));
        assert!(!at("0.0.0.0/0").contains("[2001::1]:1".parse().unwrap()));
        assert!(at("::/0").contains("[2001::1]:1".parse().unwrap()));
        assert!(at("[::1]").contains("[::1]:7".parse().unwrap()));
        assert!(!at("::1").contains("[::2]:7".parse().unwrap()));
        assert!(at(":80").contains("1.2.3.4:80".parse().unwrap()));
        assert!(at("0-65535").contains("1.2.3.4:0".parse().unwrap()));
        assert!(at("::ffff:10.0.0.0/104").contains("10.9.9.9:1".parse().unwrap()));
    }
}
