//! Link arguments of the library: none of the C compiler's files and libraries, so that it loads on systems that have
//! none of them, and the order of its functions.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    // Neither the start files, which register with libgcc and libc, nor the libraries themselves.
    for argument in ["-nostartfiles", "-nostdlib"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // Each part of the file begins on a page of its own. Otherwise what the loader writes to is spread over a page more, which it
    // copies in every process. zig, which links for other systems, does not know the option.
    println!("cargo::rerun-if-env-changed=NETACC_ZIG_TARGET");
    if std::env::var_os("NETACC_ZIG_TARGET").is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,separate-code");
    }
    // Where netacc_run has a static program begin into which it has mapped the library (src/static_start.rs).
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-e,netacc_static_start");
    }
    order_functions()
}

/// Has the linker put the functions of the file `hot-functions` together, before all others.
fn order_functions() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=hot-functions");
    let list = std::fs::read_to_string("hot-functions")?;
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sections: String = lines.map(|line| format!("    *({})\n", section(line))).collect();
    // Each function has a section of its own. A script with INSERT is an addition to the linker's own one.
    let script = format!("SECTIONS\n{{\n  .text.hot : {{\n{sections}  }}\n}}\nINSERT BEFORE .text;\n");
    let path = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("hot.ld");
    std::fs::write(&path, script)?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{}", path.display());
    Ok(())
}

/// A pattern for the sections of the functions below a path. In a mangled name each part of the path follows its length.
fn section(path: &str) -> String {
    if !path.contains([':', '*']) {
        return format!(".text.{path}");
    }
    let parts =
        path.split("::").map(|part| if part.contains('*') { part.into() } else { format!("{}{part}", part.len()) });
    format!(".text.*{}*", parts.collect::<String>())
}
