//! Decides what a configuration permits for a listener or a connect: by its rules, and by the default if none matches.

use crate::keys::Config;
use crate::matcher::{Call, Matcher, Transports};

/// A decision, and the rule that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The transports that are permitted.
    pub transports: Transports,
    /// The number of the rule among those of the program, counted from 0; `None` if no rule matched and the default
    /// decided.
    pub rule: Option<usize>,
}

/// What the first of these rules that covers the call permits, and `otherwise` where there is none.
#[must_use]
pub fn choose(rules: impl Iterator<Item = Matcher>, call: Call, otherwise: Transports) -> Choice {
    match rules.enumerate().find(|(_, rule)| rule.covers(call)) {
        Some((at, rule)) => Choice { transports: rule.transports, rule: Some(at) },
        None => Choice { transports: otherwise, rule: None },
    }
}

/// Whether these rules permit any listener or connection more than kernel TCP, where `otherwise` decides if none
/// matches.
#[must_use]
pub fn accelerates(rules: impl Iterator<Item = Matcher>, otherwise: Transports) -> bool {
    let mut permitted = false;
    for rule in rules {
        permitted |= rule.transports.any();
        // After a rule for everything no further rule and no default decides.
        if rule.covers_everything() {
            return permitted;
        }
    }
    permitted || otherwise.any()
}

impl Config {
    /// Keeps the rules that are for a program with one of these names, and drops the others.
    pub fn keep_rules_for(&mut self, names: &[&[u8]]) {
        self.rules.keep_for(names);
    }

    /// Decides by the first rule that covers the call, or by `NACC_ENABLE_RDMA_DEFAULT` if there is none. The rules
    /// must be those of the program; see [`Config::keep_rules_for`].
    #[must_use]
    pub fn choose(&self, call: Call) -> Choice {
        choose(self.rules.matchers(), call, self.default_transports())
    }

    /// Whether any listener or connection of the program may use a faster transport than kernel TCP.
    #[must_use]
    pub fn accelerates(&self) -> bool {
        accelerates(self.rules.matchers(), self.default_transports())
    }

    /// What `NACC_ENABLE_RDMA_DEFAULT` permits where no rule matches.
    #[must_use]
    pub fn default_transports(&self) -> Transports {
        if self.enable_rdma_default { Transports::ALL } else { Transports::TCP }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rules;
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;
    use alloc::vec::Vec;

    fn config(lines: &[&str]) -> Config {
        let mut config = Config::default();
        let mut diags = vec![];
        config.apply_file("f", format!("[rules]\n{}\n", lines.join("\n")).as_bytes(), &mut diags);
        assert_eq!(diags, []);
        config
    }

    fn connect(addr: &str) -> Call {
        Call::Connect(addr.parse().unwrap())
    }

    fn listen(addr: &str) -> Call {
        Call::Listen(addr.parse().unwrap())
    }

    #[test]
    fn the_first_rule_that_covers_a_call_decides() {
        let config = config(&[
            "use=tcp connect=10.1.0.0/16:6379",
            "use=rdma connect=10.0.0.0/8",
            "use = shm listen=6379-6380 # with a comment",
            "use=shm,rdma connect=[2001:db8::/32]:80",
            "use=TCP connect=fe80::/10",
            "use=shm connect=*:9000",
        ]);
        let table = [
            (connect("10.1.2.3:6379"), Transports::TCP, Some(0)),
            (connect("[::ffff:10.1.2.3]:6379"), Transports::TCP, Some(0)),
            (connect("10.1.2.3:6380"), Transports { shm: false, rdma: true }, Some(1)),
            (connect("11.0.0.1:1"), Transports::ALL, None),
            (listen("0.0.0.0:6380"), Transports { shm: true, rdma: false }, Some(2)),
            (listen("10.1.2.3:6381"), Transports::ALL, None),
            (connect("127.0.0.1:6379"), Transports::ALL, None),
            (connect("[2001:db8:1::1]:80"), Transports::ALL, Some(3)),
            (connect("[2001:db9::1]:80"), Transports::ALL, None),
            (connect("[febf::1]:80"), Transports::TCP, Some(4)),
            (connect("[::1]:9000"), Transports { shm: true, rdma: false }, Some(5)),
        ];
        for (call, transports, rule) in table {
            assert_eq!(config.choose(call), Choice { transports, rule }, "{call:?}");
        }
    }

    #[test]
    fn programs_are_told_apart_by_name() {
        let rules = ["use=tcp program=sshd", "use=shm program=redis-*", "use=rdma"];
        let numbers = |names: &[&[u8]]| {
            let mut config = config(&rules);
            config.keep_rules_for(names);
            config.rules.as_slice().iter().map(|rule| rule.line).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&[b"sshd"]), [2, 4]);
        assert_eq!(numbers(&[b"python3", b"sshd"]), [2, 4]);
        assert_eq!(numbers(&[b"redis-server"]), [3, 4]);
        assert_eq!(numbers(&[b"sshd2", b"redis"]), [4]);
    }

    #[test]
    fn a_default_of_zero_holds_where_no_rule_matches() {
        let mut config = config(&["use=shm listen=80"]);
        config.enable_rdma_default = false;
        assert_eq!(config.choose(listen("0.0.0.0:80")).transports, Transports { shm: true, rdma: false });
        assert_eq!(config.choose(connect("127.0.0.1:80")).transports, Transports::TCP);
        assert!(config.accelerates());
        config.keep_rules_for(&[]);
        assert!(config.accelerates(), "the rule is for every program");
    }

    #[test]
    fn a_program_that_no_rule_accelerates_is_left_alone() {
        assert!(!config(&["use=tcp", "use=shm listen=80"]).accelerates());
        assert!(config(&["use=shm listen=80", "use=tcp"]).accelerates());
        assert!(config(&[]).accelerates());
        assert!(config(&["use=tcp listen=80"]).accelerates());
    }

    #[test]
    fn wrong_lines_are_named_with_what_is_allowed() {
        let long = format!("use=tcp program={}", "x".repeat(300));
        for (line, said) in [
            ("use=", "use=\"\" names no transports"),
            ("use=udp", "use=\"udp\" names no transports; allowed: shm, rdma, tcp"),
            ("allow=tcp", "a rule cannot begin with \"allow\""),
            ("use=tcp connect=", "\"\" is not an endpoint"),
            ("use=tcp connect=10.0.0.0/33", "\"10.0.0.0/33\" is not an endpoint; allowed: PORT"),
            ("use=tcp connect=10.0.0.0:", "is not an endpoint"),
            ("use=tcp connect=10.0.0.0:99999", "is not an endpoint"),
            ("use=tcp connect=2001:db8::1:80-70", "is not an endpoint"),
            ("use=tcp connect=[10.0.0.1]:80", "is not an endpoint"),
            ("use=tcp listen=80-70", "is not an endpoint"),
            ("use=tcp listen=+80", "is not an endpoint"),
            ("use=tcp listen=80 connect=80", "there is more than one listen= or connect="),
            ("use=tcp program=a program=b", "program= occurs twice; allowed: once"),
            ("use=tcp program=/bin/sh", "is not a program's name; allowed: a file name without"),
            ("use=tcp port=80", "\"port=80\" is unknown; allowed: program=NAME"),
            ("tcp listen=80", "a rule cannot begin with \"tcp listen\""),
            (&long, "allowed: 256"),
        ] {
            let mut config = Config::default();
            let mut diags = vec![];
            config.apply_file("f", format!("[netacc]\n[rules]\n{line}\n").as_bytes(), &mut diags);
            let [diag] = diags.as_slice() else { panic!("{line}: {diags:?}") };
            let shown = diag.to_string();
            assert!(shown.starts_with("f:3: ") && shown.contains(said), "{line}: {shown}");
            assert!(shown.ends_with("; this rule is ignored"), "{line}: {shown}");
            assert_eq!(config.rules.as_slice(), []);
        }
    }

    #[test]
    fn there_is_a_limit() {
        let mut config = Config::default();
        let mut diags = vec![];
        config.apply_file("f", format!("[rules]\n{}", "use=tcp\n".repeat(Rules::MAX + 2)).as_bytes(), &mut diags);
        assert_eq!(config.rules.as_slice().len(), Rules::MAX);
        assert_eq!(diags.len(), 2);
        assert!(diags[0].to_string().contains("more than 64 rules"));
    }
}
