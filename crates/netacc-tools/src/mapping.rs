//! Maps the library into a static program that this process executes.

#[cfg(target_arch = "x86_64")]
use std::ffi::CString;

#[cfg(target_arch = "x86_64")]
use netacc_sys::mapped::{Helper, Problem};

#[cfg(target_arch = "x86_64")]
use crate::library;

/// Starts the process that maps the library into the program that this process executes next. `report` runs in that
/// process, with the reason, if the program is executed without the library after all.
///
/// # Errors
/// Why the library cannot be mapped.
#[cfg(target_arch = "x86_64")]
pub fn start(report: impl FnOnce(String)) -> Result<Helper, String> {
    let library = library::find_file().and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok());
    let library = library.ok_or("the library is not beside NetACC's programs")?;
    Helper::start(&library, || Ok(None), |problem| report(said(problem))).map_err(said)
}

#[cfg(target_arch = "x86_64")]
fn said(problem: Problem) -> String {
    match problem.errno() {
        Some(errno) => format!("{problem} ({})", std::io::Error::from_raw_os_error(errno.0)),
        None => problem.to_string(),
    }
}

/// Tries whether the library can be mapped into a program that this process executes.
///
/// # Errors
/// Why it cannot.
pub fn attempt() -> Result<(), String> {
    #[cfg(target_arch = "x86_64")]
    start(|_| ())?.end();
    Ok(())
}
