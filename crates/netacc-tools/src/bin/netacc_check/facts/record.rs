//! A host written down, and read again.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::Host;

/// The layout of a recording. A reader takes its own and refuses a newer one.
pub(crate) const FORMAT: u32 = 1;

/// A recording longer than this is something else.
const MAX_BYTES: u64 = 4 << 20;

/// The host as JSON.
pub(crate) fn write(host: &Host) -> Result<String, String> {
    serde_json::to_string_pretty(host)
        .map(|text| text + "\n")
        .map_err(|error| format!("cannot be written down: {error}"))
}

/// Reads a recording; `-` is standard input. The error names the file and what to do.
pub(crate) fn read(path: &Path) -> Result<Host, String> {
    let shown = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
    load(path).and_then(|text| parse(&text)).map_err(|error| format!("{shown}: {error}"))
}

fn load(path: &Path) -> Result<String, String> {
    let mut text = Vec::new();
    let stream: &mut dyn Read = if path == Path::new("-") {
        &mut std::io::stdin()
    } else {
        // A FIFO would have to be named to us, but then it may as well be read.
        &mut fs::File::open(path).map_err(|error| error.to_string())?
    };
    stream.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("longer than {MAX_BYTES} bytes, so it is no recording of a host"));
    }
    String::from_utf8(text).map_err(|_| "not UTF-8, so it is no recording of a host".to_owned())
}

fn parse(text: &str) -> Result<Host, String> {
    let host: Host = serde_json::from_str(text).map_err(|error| {
        let end = if error.is_eof() { "it is cut off" } else { "it is no recording of a host" };
        format!("{end}: {error}; write it anew on that host with 'netacc_check --record'")
    })?;
    match host.format {
        FORMAT => Ok(host),
        0 => Err(format!("it is no recording of a host: \"format\" is missing; allowed: {FORMAT}")),
        other => Err(format!("\"format\" is {other}; allowed: {FORMAT}; use the netacc_check that wrote it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut host = Host { format: FORMAT, kernel: "6.1".into(), ..Host::default() };
        host.interfaces.push(super::super::Interface { name: "eth0".into(), mtu: Some(9001), ..Default::default() });
        let text = write(&host).unwrap();
        let again = parse(&text).unwrap();
        assert_eq!((again.kernel.as_str(), again.interfaces[0].mtu), ("6.1", Some(9001)));
        // Whatever is cut off is told, and never half read.
        for end in 1..text.trim_end().len() {
            let error = parse(&text[..end]).unwrap_err();
            assert!(error.contains("it is cut off"), "{end}: {error}");
        }
    }

    #[test]
    fn what_is_no_recording() {
        for (text, wanted) in [
            ("", "it is cut off"),
            ("{}", "\"format\" is missing"),
            ("[]", "it is no recording"),
            ("{\"format\":2}", "\"format\" is 2; allowed: 1"),
            ("{\"format\":1,\"kernell\":\"x\"}", "unknown field `kernell`"),
            ("{\"format\":1,\n\"interfaces\":[{\"mtu\":-1}]}", "line 2"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        assert!(read(Path::new("/no/such/file")).unwrap_err().starts_with("/no/such/file: No such file"));
        assert!(read(Path::new("/")).unwrap_err().starts_with("/: "));
    }
}
