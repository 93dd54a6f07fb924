//! Tests of the sources together.

use alloc::string::{String, ToString};
use alloc::{format, vec, vec::Vec};

use proptest::prelude::*;

use super::*;

const SHIPPED: &str = include_str!("../../../dist/netacc.conf");

/// Applies a file, finishes the configuration, and returns it with the diagnostics as lines.
fn read(text: impl AsRef<[u8]>) -> (Config, Vec<String>) {
    let mut config = Config::default();
    let mut diags = Vec::new();
    config.apply_file("f", text.as_ref(), &mut diags);
    config.finish(&mut diags);
    assert!(config.is_valid());
    (config, diags.iter().map(ToString::to_string).collect())
}

fn only(diags: &[String]) -> &str {
    assert_eq!(diags.len(), 1, "{diags:?}");
    &diags[0]
}

#[test]
fn shipped_sample_is_the_generated_one() {
    if std::env::var_os("NETACC_WRITE_SAMPLE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/netacc.conf");
        std::fs::write(path, sample()).unwrap();
        return;
    }
    assert_eq!(SHIPPED, sample(), "run the test with NETACC_WRITE_SAMPLE=1 to write it anew");
}

#[test]
fn shipped_sample_is_clean_and_equals_the_defaults() {
    let (config, diags) = read(SHIPPED);
    assert_eq!(diags, Vec::<String>::new());
    let defaults = Config::default();
    for key in &KEYS {
        assert_eq!(key.value(&config), key.value(&defaults), "{}", key.name);
        assert!(matches!(config.source(key.name), Some(Source::File { .. })), "{}", key.name);
    }
}

#[test]
fn defaults_are_those_of_the_manual() {
    let c = Config::default();
    assert!(c.is_valid());
    assert_eq!((c.msg_size, c.mr_min_inc_size, c.mr_max_inc_size), (16384, 16384, 8388608));
    assert_eq!((c.conn_per_qp, c.io_threads), (1, 1));
    assert_eq!((c.empty_qp_expire_ms, c.empty_qp_max_all, c.empty_qp_max_per), (60000, 100, 10));
    assert_eq!((c.connect_rdma_percent, c.enable_rdma_default), (100, true));
    assert_eq!((c.log_level, c.log_path.as_str()), (LogLevel::Warn, "/tmp/netacc.log"));
    assert_eq!((c.affinity.as_str(), c.conn_tcp_first), ("", false));
    assert_eq!((c.fast_connect, c.debug, c.poll_cq_ms, c.comp_vector), (false, false, 0, 0));
}

#[test]
fn manual_page_has_every_key() {
    let page = include_str!("../../../man/netacc.conf.5");
    for key in &KEYS {
        assert!(page.contains(key.name), "{}", key.name);
    }
}

#[test]
fn table_is_consistent() {
    for (at, key) in KEYS.iter().enumerate() {
        assert!(key.name.starts_with("NACC_"));
        assert!(!KEYS[..at].iter().any(|other| other.name == key.name));
        assert!(KEYS[..at].iter().all(|other| other.option.is_none() || other.option != key.option));
        if let Relation::PowerOfTwoTimes(base) = key.relation {
            assert!(KEYS[..at].iter().any(|other| other.name == base), "{}", key.name);
        }
        assert_eq!(check_value(key.name, key.default_text().as_bytes()), Ok(key.default_text()));
    }
}

#[test]
fn every_key_reaches_its_own_field() {
    for key in &KEYS {
        let value = match key.kind {
            Kind::Int { max, .. } => max.to_string(),
            Kind::Bool => u8::from(key.default_text() == "0").to_string(),
            Kind::Level => "5".into(),
            Kind::Path => "/x".into(),
            Kind::CpuList => "7".into(),
        };
        let mut config = Config::default();
        config.apply_env(key.name, value.as_bytes(), &mut Vec::new());
        for other in &KEYS {
            let expected = if other.name == key.name { &value } else { &other.default_text() };
            assert_eq!(&other.value(&config).to_string(), expected, "{} {}", key.name, other.name);
        }
    }
}

#[test]
fn later_sources_win_in_any_order() {
    let mut diags = Vec::new();
    let mut config = Config::default();
    config.apply_cmdline(b"NACC_SOR_IO_THREADS=4;;NACC_DEBUG=1", &mut diags);
    config.apply_env("NACC_SOR_IO_THREADS", b"3", &mut diags);
    config.apply_env("NACC_SOR_CONN_PER_QP", b"8", &mut diags);
    let file =
        b"[netacc]\nNACC_SOR_IO_THREADS=2\nNACC_SOR_CONN_PER_QP=2\nNACC_LOG_LEVEL=warn\nNACC_EMPTY_QP_MAX_PER=7\n";
    config.apply_file("f", file, &mut diags);
    config.finish(&mut diags);
    assert_eq!(diags, []);
    assert_eq!((config.io_threads, config.conn_per_qp), (4, 8));
    let shown: Vec<_> = config.entries().collect();
    assert_eq!(shown.len(), KEYS.len());
    for (name, value, source) in [
        ("NACC_SOR_IO_THREADS", "4", "command line"),
        ("NACC_SOR_CONN_PER_QP", "8", "environment"),
        // Debug mode was set by a source of higher priority than the level.
        ("NACC_LOG_LEVEL", "1", "command line"),
        ("NACC_EMPTY_QP_MAX_PER", "7", "f:5"),
        ("NACC_SOR_MSG_SIZE", "16384", "default"),
    ] {
        assert!(shown.contains(&(name, value.into(), source.into())), "{name}");
    }
}

#[test]
fn wrong_value_keeps_what_was_in_force() {
    let (config, diags) = read("[netacc]\nNACC_SOR_IO_THREADS = 65 # many\n");
    assert_eq!(config.io_threads, 1);
    let expected = r#"f:2: NACC_SOR_IO_THREADS: "65" is out of range; allowed: 1..=64; using 1"#;
    assert_eq!(only(&diags), expected);

    let mut config = Config::default();
    let mut diags = Vec::new();
    config.apply_file("f", b"[netacc]\nNACC_SOR_AFFINITY=\"1-3\"\n", &mut diags);
    config.apply_env("NACC_SOR_AFFINITY", b"all", &mut diags);
    assert_eq!(config.affinity_cpus().collect::<Vec<_>>(), [1, 2, 3]);
    assert!(diags[0].to_string().ends_with("; using 1-3"), "{diags:?}");
}

#[test]
fn unknown_keys_and_sections() {
    let (_, diags) = read("[netacc]\nNACC_SOR_IO_THREAD=2\nfoo=1\n[other]\nbar\n\n[NetACC]\nNACC_DEBUG=1");
    assert_eq!(
        diags,
        [
            "f:2: NACC_SOR_IO_THREAD: unknown key; ignored; did you mean NACC_SOR_IO_THREADS?",
            "f:3: foo: unknown key; ignored",
            "f:4: unknown section \"other\"; allowed: [netacc], [rules]; its lines are ignored",
        ]
    );
    let mut diags = Vec::new();
    let mut config = Config::default();
    config.apply_env("NACC_DEBG", b"1", &mut diags);
    config.apply_env("NACC_CONFIG_FILE", b"/x", &mut diags);
    config.apply_env("NACC_CMDLINE", b"x", &mut diags);
    config.apply_env("PATH", b"x", &mut diags);
    assert_eq!(diags.len(), 1);
    assert_eq!(diags[0].to_string(), "environment: NACC_DEBG: unknown key; ignored; did you mean NACC_DEBUG?");
}

#[test]
fn missing_section() {
    let (config, diags) = read("\nNACC_DEBUG=1\nNACC_LOG_LEVEL=0\n");
    assert_eq!((config.debug, config.log_level), (true, LogLevel::Trace));
    assert_eq!(only(&diags), "f:2: the line [netacc] is missing before this; read as if it were there");
    assert_eq!(only(&read("# nothing\n").1), "f: no [netacc] section; the file sets nothing");
    assert_eq!(only(&read("").1), "f: no [netacc] section; the file sets nothing");
    assert_eq!(read("[netacc]").1, Vec::<String>::new());
}

#[test]
fn duplicate_key() {
    let (config, diags) = read("[netacc]\r\nNACC_DEBUG=0\r\nNACC_DEBUG=1\r\n");
    assert!(config.debug);
    assert_eq!(only(&diags), "f:3: NACC_DEBUG: already set in line 2; this line replaces it");
}

#[test]
fn an_earlier_name_of_a_key_works_everywhere() {
    let (config, diags) = read("[netacc]\nNACC_TCP_BASE=0\n");
    assert_eq!((config.tcp_companion, diags), (false, vec![]));
    assert_eq!(config.source("NACC_TCP_COMPANION"), Some(Source::File { line: 2 }));
    assert_eq!(config.source("NACC_TCP_BASE"), Some(Source::File { line: 2 }));
    let mut config = Config::default();
    let mut diags = Vec::new();
    config.apply_env("NACC_TCP_BASE", b"0", &mut diags);
    assert_eq!((config.tcp_companion, config.source("NACC_TCP_COMPANION")), (false, Some(Source::Env)));
    config.apply_cmdline(b"NACC_TCP_BASE=1", &mut diags);
    assert_eq!((config.tcp_companion, diags.len()), (true, 0));
    let (_, diags) = read("[netacc]\nNACC_TCP_BASE=0\nNACC_TCP_COMPANION=1\n");
    assert!(only(&diags).contains("NACC_TCP_COMPANION: already set in line 2"), "{diags:?}");
    assert_eq!(check_value("NACC_TCP_BASE", b"1").as_deref(), Ok("1"));
    assert_eq!(key("NACC_TCP_BASE").map(|k| k.name), Some("NACC_TCP_COMPANION"));
}

#[test]
fn debug_mode_logs_from_debug_on() {
    let level = |file: &str, env: Option<&[u8]>| {
        let (mut config, mut diags) = (Config::default(), Vec::new());
        config.apply_file("f", file.as_bytes(), &mut diags);
        if let Some(value) = env {
            config.apply_env("NACC_LOG_LEVEL", value, &mut diags);
        }
        config.finish(&mut diags);
        assert_eq!(diags, []);
        config.log_level
    };
    assert_eq!(level("[netacc]\nNACC_DEBUG=1\n", None), LogLevel::Debug);
    assert_eq!(level("[netacc]\nNACC_LOG_LEVEL=3\nNACC_DEBUG=1\n", None), LogLevel::Debug);
    assert_eq!(level("[netacc]\nNACC_LOG_LEVEL=0\nNACC_DEBUG=1\n", None), LogLevel::Trace);
    assert_eq!(level("[netacc]\nNACC_DEBUG=1\n", Some(b"4")), LogLevel::Error);
    assert_eq!(level("[netacc]\nNACC_DEBUG=0\n", None), LogLevel::Warn);
}

#[test]
fn foreign_bytes() {
    let (_, diags) = read(b"[netacc]\nNACC_LOG_PATH=\"/tmp/\xff\"\nK\xff=1\nNACC_DEBUG=1\0\nx\n");
    assert_eq!(diags.len(), 4, "{diags:?}");
    assert!(diags[0].contains(r#""/tmp/\xff" is not UTF-8"#), "{diags:?}");
    assert!(diags.iter().all(|line| !line.chars().any(char::is_control)));

    let long = format!("[netacc]\nNACC_DEBUG={}\nNACC_DEBUG=1\n", "1".repeat(1 << 20));
    let (config, diags) = read(long);
    assert!(config.debug);
    assert_eq!(only(&diags), "f:2: the line is too long; ignored");
}

#[test]
fn a_file_of_something_else_does_not_fill_the_log() {
    let (config, diags) = read(format!("{}[netacc]\nNACC_DEBUG=1\n", "junk\n".repeat(10_000)));
    assert!(config.debug, "the rest of the file counts");
    assert_eq!(diags.len(), 51);
    assert_eq!(diags[50], "f:51: more problems, from here on, are not listed");
    let hostile = format!("/etc/{}\nx", "a".repeat(200));
    let mut diags = Vec::new();
    Config::default().apply_file(&hostile, b"x", &mut diags);
    assert!(!diags[0].to_string().contains('\n'));
}

#[test]
fn sizes_are_powers_of_two_times_each_other() {
    let (config, diags) = read("[netacc]\nNACC_RDMA_MR_MIN_INC_SIZE=30000\n");
    assert_eq!(config.mr_min_inc_size, 32768);
    assert_eq!(
        only(&diags),
        "f:2: NACC_RDMA_MR_MIN_INC_SIZE: 30000 is not NACC_SOR_MSG_SIZE (16384, default) times a power of two; \
         allowed: 16384, 32768, 65536, ... 536870912; using 32768"
    );
    let (config, diags) = read("[netacc]\nNACC_RDMA_MR_MAX_INC_SIZE=3000000\n");
    assert_eq!(config.mr_max_inc_size, 2097152);
    assert!(only(&diags).contains("allowed: 1048576, 2097152, 4194304, ... 536870912"), "{diags:?}");
    let (config, diags) = read("[netacc]\nNACC_RDMA_MR_MAX_INC_SIZE=524288\n");
    assert_eq!(config.mr_max_inc_size, 8 << 20);
    assert!(only(&diags).contains("allowed: 1048576..=536870912"), "{diags:?}");
}

#[test]
fn sizes_follow_the_message_size_where_nobody_chose_them() {
    let sizes = |c: &Config| (c.msg_size, c.mr_min_inc_size, c.mr_max_inc_size);
    let (config, diags) = read("[netacc]\nNACC_SOR_MSG_SIZE=20000\n");
    assert_eq!((sizes(&config), diags), ((20000, 20000, 10_240_000), vec![]));

    // The shipped file repeats the defaults, so `netacc_run -s` must not cause warnings about its lines.
    let mut diags = Vec::new();
    let mut config = Config::default();
    config.apply_file("f", SHIPPED.as_bytes(), &mut diags);
    config.apply_cmdline(b"NACC_SOR_MSG_SIZE=20000", &mut diags);
    config.finish(&mut diags);
    assert_eq!((sizes(&config), diags), ((20000, 20000, 10_240_000), vec![]));
    assert_eq!(config.source("NACC_RDMA_MR_MAX_INC_SIZE"), Some(Source::CommandLine));
    let again = config.clone();
    config.finish(&mut Vec::new());
    assert_eq!(config, again);

    // But within one file it is a contradiction.
    let (config, diags) = read("[netacc]\nNACC_SOR_MSG_SIZE=32768\nNACC_RDMA_MR_MIN_INC_SIZE=16384\n");
    assert_eq!(config.mr_min_inc_size, 32768);
    only(&diags);
}

#[test]
fn typed_views() {
    let mut config = Config::default();
    assert_eq!(config.empty_qp_expire(), Some(core::time::Duration::from_secs(60)));
    config.apply_env("NACC_EMPTY_QP_EXPIRE_MS", b"-1", &mut Vec::new());
    assert_eq!(config.empty_qp_expire(), None);
    assert_eq!(config.affinity_cpus().count(), 0);
    config.apply_env("NACC_SOR_AFFINITY", b"0, 2-4,3", &mut Vec::new());
    assert_eq!(config.affinity_cpus().collect::<Vec<_>>(), [0, 2, 3, 4, 3]);
}

#[test]
fn checking_one_value() {
    assert_eq!(check_value("NACC_SOR_IO_THREADS", b" 04"), Ok("4".into()));
    let expected = r#""0" is out of range; allowed: 1..=64"#;
    assert_eq!(check_value("NACC_SOR_IO_THREADS", b"0"), Err(expected.into()));
    assert_eq!(check_value("NACC_DBUG", b"0"), Err("unknown key; did you mean NACC_DEBUG?".into()));
}

#[test]
fn malformed_command_line() {
    let mut diags = Vec::new();
    let mut config = Config::default();
    config.apply_cmdline(b"NACC_DEBUG;\xff=1;=;NACC_X=1;NACC_DEBUG=1=1;NACC_COMP_VECTOR=2", &mut diags);
    assert_eq!(config.comp_vector, 2);
    assert_eq!(diags.len(), 5, "{diags:?}");
}

/// Lines that are almost correct, so that the random files reach every branch.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let name = proptest::sample::select(KEYS.as_slice()).prop_map(|key| key.name);
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (0u32..32, -1i64..=1).prop_map(|(shift, off)| ((1i64 << shift) + off).to_string()),
        "[\"'0-9,#;/ \\\\-]{0,12}",
        any::<String>(),
    ];
    prop_oneof![
        3 => (name, value).prop_map(|(name, value)| format!("{name}={value}").into_bytes()),
        1 => Just(b"[netacc]".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn no_bytes_make_an_invalid_config(
        lines in proptest::collection::vec(line(), 0..40),
        env in proptest::collection::vec(line(), 0..6),
        cmdline in proptest::collection::vec(line(), 0..6),
    ) {
        let mut config = Config::default();
        let mut diags = Vec::new();
        config.apply_file("f", &lines.join(&b'\n'), &mut diags);
        for variable in &env {
            let variable = String::from_utf8_lossy(variable);
            let (key, value) = variable.split_once('=').unwrap_or((&variable, ""));
            config.apply_env(key, value.as_bytes(), &mut diags);
        }
        config.apply_cmdline(&cmdline.join(&b';'), &mut diags);
        config.finish(&mut diags);
        prop_assert!(config.is_valid());
        for diagnostic in &diags {
            let text = diagnostic.to_string();
            prop_assert!(!text.contains('\n') && text.len() < 4096, "{text}");
        }
        let before = config.clone();
        let mut more = Vec::new();
        config.finish(&mut more);
        prop_assert_eq!(config, before);
        prop_assert!(more.is_empty());
    }

    #[test]
    fn arbitrary_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut config = Config::default();
        config.apply_file("f", &text, &mut Vec::new());
        config.apply_cmdline(&text, &mut Vec::new());
        config.finish(&mut Vec::new());
        prop_assert!(config.is_valid());
    }

    #[test]
    fn what_is_shown_can_be_read_back(env in proptest::collection::vec(line(), 0..20)) {
        let mut config = Config::default();
        config.apply_cmdline(&env.join(&b';'), &mut Vec::new());
        config.finish(&mut Vec::new());
        let mut copy = Config::default();
        for (name, value, _) in config.entries() {
            copy.apply_env(name, value.as_bytes(), &mut Vec::new());
        }
        for key in &KEYS {
            prop_assert_eq!(key.value(&copy), key.value(&config));
        }
    }
}
