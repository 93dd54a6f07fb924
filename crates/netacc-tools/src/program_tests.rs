//! Tests of finding and judging programs.

use super::*;
use netacc_sys::go_program::Names;
use std::os::unix::fs::PermissionsExt;

/// A directory of its own for each test, emptied before use.
fn directory(name: &str) -> PathBuf {
    let path = env::temp_dir().join(format!("netacc-program-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn write(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn found_as_execvp_does() {
    let dir = directory("find");
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::create_dir_all(a.join("folder")).unwrap();
    fs::create_dir_all(&b).unwrap();
    write(&a.join("tool"), b"", 0o644);
    write(&b.join("tool"), b"", 0o755);
    write(&a.join("plain"), b"", 0o644);
    let path: OsString = [a.as_os_str(), b.as_os_str()].join(OsStr::new(":"));
    assert_eq!(find_in(OsStr::new("tool"), &path), Ok(b.join("tool")), "the first is not executable");
    assert_eq!(find_in(OsStr::new("plain"), &path), Err(NotRunnable::NoPermission));
    assert_eq!(find_in(OsStr::new("folder"), &path), Err(NotRunnable::Directory));
    assert_eq!(find_in(OsStr::new("absent"), &path), Err(NotRunnable::NotFound));
    assert_eq!(find_in(OsStr::new(""), &path), Err(NotRunnable::NotFound));
    let direct = a.join("plain");
    assert_eq!(find_in(direct.as_os_str(), &path), Err(NotRunnable::NoPermission));
    assert_eq!(find_in(OsStr::new("/dev/null"), &path), Err(NotRunnable::NotExecutable));
    let below_a_file = a.join("plain/x");
    assert_eq!(find_in(below_a_file.as_os_str(), &path), Err(NotRunnable::NoFile));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn scripts_are_judged_by_their_interpreter() {
    let dir = directory("scripts");
    let shell = fs::canonicalize("/bin/sh").unwrap();
    for (name, text) in [
        ("direct", "#!/bin/sh -e\n"),
        ("spaced", "#! \t/bin/sh\n"),
        ("env", "#!/usr/bin/env sh\n"),
        ("env-S", "#!/usr/bin/env -S A=b sh -e\n"),
        ("bare", "echo hello\n"),
    ] {
        let script = dir.join(name);
        write(&script, text.as_bytes(), 0o755);
        let verdict = judge(&script);
        assert_eq!(fs::canonicalize(&verdict.program).unwrap(), shell, "{name}");
        assert_eq!(verdict.obstacle, None, "{name}");
    }
    let looping = dir.join("loop");
    write(&looping, format!("#!{}\n", looping.display()).as_bytes(), 0o755);
    assert_eq!(judge(&looping).obstacle, None);
    for text in ["#!", "#!\n", "#! \n", "#!/absent/interpreter\n", "#!/usr/bin/env\n", "#!/dev/null\n"] {
        let script = dir.join("odd");
        write(&script, text.as_bytes(), 0o755);
        assert_eq!(judge(&script).obstacle, None, "{text:?}");
    }
    fs::remove_dir_all(dir).unwrap();
}

fn elf(interpreter: Option<&str>) -> Elf {
    Elf {
        is_64: cfg!(target_pointer_width = "64"),
        little_endian: cfg!(target_endian = "little"),
        machine: OWN_MACHINE.unwrap_or(0),
        interpreter: interpreter.map(|path| path.as_bytes().to_vec()),
        go: false,
        packed: false,
        needed: Vec::new(),
        names: Names::default(),
        thread_local: 0,
        code: Vec::new(),
    }
}

#[test]
fn verdicts_on_elf_files() {
    let file = Path::new("/usr/bin/x");
    let glibc = elf(Some("/lib64/ld-linux-x86-64.so.2"));
    assert_eq!(judge_elf(&glibc, file), None);
    assert_eq!(judge_elf(&elf(Some("/nix/store/x-glibc/lib/ld-linux-aarch64.so.1")), file), None);
    assert_eq!(judge_elf(&elf(None), file), Some(Obstacle::Static));
    assert_eq!(judge_elf(&elf(None), Path::new("/lib64/ld-linux-x86-64.so.2")), None);
    let packed = judge_elf(&Elf { packed: true, ..elf(None) }, file).unwrap();
    assert!(packed == Obstacle::Packed && !packed.is_certain() && !packed.forbids_preload());
    assert_eq!(judge_elf(&Elf { packed: true, ..glibc.clone() }, file), None, "its loader preloads");
    let other = judge_elf(&elf(Some("/lib/ld-uClibc.so.0")), file).unwrap();
    assert_eq!(other.to_string(), "it uses neither glibc nor musl (its loader is /lib/ld-uClibc.so.0)");
    assert!(other.forbids_preload());
    for program in [&glibc, &elf(None)] {
        let program = Elf { go: true, thread_local: 8, ..program.clone() };
        assert!(is_static_go(&program));
        assert_eq!(judge_elf(&program, file), None, "its code decides");
        let with_libc = Some(Obstacle::Go(Unfollowed::StaticLibc));
        assert_eq!(judge_elf(&Elf { thread_local: 9, ..program }, file), with_libc);
    }
    let needed = vec![b"libc.so.6".to_vec()];
    assert_eq!(judge_elf(&Elf { go: true, needed, ..glibc.clone() }, file), None, "its code decides");
    let foreign = Elf { is_64: !glibc.is_64, ..glibc.clone() };
    assert_eq!(judge_elf(&foreign, file), Some(Obstacle::Machine));
    if OWN_MACHINE.is_some() {
        assert_eq!(judge_elf(&Elf { machine: 8, ..glibc }, file), Some(Obstacle::Machine));
    }
    let dir = directory("musl");
    for (name, bytes, obstacle) in [
        ("ld-musl-x86_64.so.1", &b"\x7fELF...\0fork\0_Fork\0..."[..], None),
        ("ld-musl-aarch64.so.1", b"\x7fELF...\0fork\0...", Some(Obstacle::OldMusl)),
    ] {
        let loader = dir.join(name);
        write(&loader, bytes, 0o755);
        assert_eq!(judge_elf(&elf(loader.to_str()), file), obstacle);
        assert_eq!(judge_elf(&elf(None), &loader), obstacle);
    }
    // A loader of another host cannot be looked at.
    assert_eq!(judge_elf(&elf(Some("/absent/ld-musl-x86_64.so.1")), file), None);
    fs::remove_dir_all(dir).unwrap();
    assert!(!Obstacle::OldMusl.forbids_preload());
    let hostile = Obstacle::Loader("/lib/\x1b[31m\nx".into());
    assert!(!hostile.to_string().chars().any(char::is_control));
}

#[test]
fn programs_of_this_host() {
    let own = env::current_exe().unwrap();
    assert_eq!(judge(&own).obstacle, None);
    let su = Path::new("/usr/bin/su");
    let is_setuid = fs::metadata(su).is_ok_and(|meta| meta.mode() & 0o4000 != 0);
    if is_setuid {
        let expected = match rustix::process::getuid().is_root() {
            true => None,
            false => Some(Obstacle::Privileged("set-user-ID")),
        };
        assert_eq!(judge(su).obstacle, expected);
    }
}

#[test]
fn set_user_id_of_somebody_else() {
    // Only root can give a file away.
    if !rustix::process::getuid().is_root() {
        return;
    }
    let dir = directory("setuid");
    let file = dir.join("program");
    fs::copy(env::current_exe().unwrap(), &file).unwrap();
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    for (mode, how) in [(0o4755, Some("set-user-ID")), (0o2755, Some("set-group-ID")), (0o2745, None)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(judge(&file).obstacle, how.map(Obstacle::Privileged), "{mode:o}");
    }
    fs::remove_dir_all(dir).unwrap();
}
