//! Link arguments of the library: none of the C compiler's files and libraries, so that it loads on systems that have
//! none of them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Neither the start files, which register with libgcc and libc, nor the libraries themselves.
    for argument in ["-nostartfiles", "-nostdlib"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // Where netacc_run has a static program begin into which it has mapped the library (src/static_start.rs).
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-e,netacc_static_start");
    }
}
