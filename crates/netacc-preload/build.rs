//! Link arguments of the library: none of the C compiler's files and libraries, so that it loads on systems that have
//! none of them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Neither the start files, which register with libgcc and libc, nor the libraries themselves.
    for argument in ["-nostartfiles", "-nostdlib"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
