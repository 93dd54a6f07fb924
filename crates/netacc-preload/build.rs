//! How the library is linked: with nothing of the C compiler's, since it is to load where none of that is.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Neither the start files, which register with libgcc and libc, nor the libraries themselves.
    for argument in ["-nostartfiles", "-nostdlib"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
