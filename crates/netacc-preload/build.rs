//! Link arguments of the library: none of the C compiler's files and libraries, so that it loads on systems that have
//! none of them.

fn main() {
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
}
