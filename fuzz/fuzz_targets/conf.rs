//! Fuzzes all sources of the configuration: whatever they hold, the result is a configuration that needs
//! no further correction, and every diagnostic can be printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_conf::{Config, KEYS};

fuzz_target!(|bytes: &[u8]| {
    let mut diags = Vec::new();
    let mut c = Config::default();
    // The first byte chooses the source, so that a corpus entry stays readable.
    let Some((source, text)) = bytes.split_first() else {
        return;
    };
    match source % 4 {
        0 => c.apply_file("fuzz.conf", text, &mut diags),
        1 => c.apply_cmdline(text, &mut diags),
        2 => {
            let (key, value) =
                text.split_at(text.iter().position(|b| *b == b'=').unwrap_or(text.len()));
            let value = value.get(1..).unwrap_or(&[]);
            c.apply_env(&String::from_utf8_lossy(key), value, &mut diags);
        }
        _ => {
            // The sources are applied one after the other, as in a process.
            c.apply_file("fuzz.conf", text, &mut diags);
            for key in KEYS {
                c.apply_env(key.name, text, &mut diags);
            }
            c.apply_cmdline(text, &mut diags);
        }
    }
    c.finish(&mut diags);
    for d in &diags {
        let shown = d.to_string();
        assert!(
            !shown.chars().any(|c| c.is_control()),
            "{shown:?} would garble a terminal"
        );
    }
    let before = diags.len();
    c.finish(&mut diags);
    assert_eq!(
        diags.len(),
        before,
        "finished, and not yet consistent: {:?}",
        diags.last()
    );
});
