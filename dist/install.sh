#!/bin/sh
# Installs NetACC from a release archive, or takes it away again. See install.sh --help.
set -eu

usage() {
    cat <<'END'
usage: install.sh [OPTIONS] [ARCHIVE]    install, or upgrade
       install.sh [OPTIONS] --uninstall

ARCHIVE is netacc-VERSION-MACHINE-linux-gnu.tar.gz; its checksum is read from ARCHIVE.sha256 beside it. Without ARCHIVE
the one that this script was unpacked from is installed.

  --prefix DIR    where to; /usr/local unless given. With /usr the library is in the linker's path on every system.
  --sha256 SUM    the checksum of ARCHIVE, from where you trust it; ARCHIVE.sha256 is not read then
  --root DIR      below this folder, as if it were /: for images and packages
  --uninstall     remove what was installed; a configuration that was changed stays
  -h, --help      this text

The configuration is /etc/netacc.conf wherever the rest is, and one that is there is never overwritten.
Programs that run keep the library they have; new ones get the new one.
END
}

say() {
    echo "install.sh: $*"
}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

wrong_usage() {
    echo "install.sh: $*; see install.sh --help" >&2
    exit 2
}

prefix=/usr/local
root=
sum=
archive=
action=install
while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --sha256 | --root)
        [ $# -gt 1 ] || wrong_usage "$1 needs a value"
        case $1 in
        --prefix) prefix=$2 ;;
        --sha256) sum=$2 ;;
        --root) root=$2 ;;
        esac
        shift
        ;;
    --uninstall) action=uninstall ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*) wrong_usage "unknown option $1" ;;
    *)
        [ -z "$archive" ] || wrong_usage "more than one archive"
        archive=$1
        ;;
    esac
    shift
done
case $prefix in
/*) ;;
*) wrong_usage "--prefix $prefix is not an absolute path" ;;
esac
prefix=${prefix%/}
[ -z "$root" ] || [ -d "$root" ] || fail "--root $root is not a folder"
root=${root%/}
# What was installed, one "checksum  path" per line, for upgrades and to be removed by.
manifest=$root$prefix/share/netacc/installed.sha256

if command -v sha256sum >/dev/null 2>&1; then
    hash="sha256sum"
elif command -v shasum >/dev/null 2>&1; then
    hash="shasum -a 256"
else
    fail "neither sha256sum nor shasum is there to verify the checksum with"
fi

sha256() { # FILE
    $hash <"$1" | cut -d ' ' -f 1
}

verify_archive() {
    [ -f "$archive" ] || fail "$archive: no such file"
    if [ -z "$sum" ]; then
        [ -f "$archive.sha256" ] ||
            fail "$archive.sha256 is missing: fetch it from where the archive came from, or say --sha256 SUM"
        sum=$(cut -d ' ' -f 1 <"$archive.sha256")
    fi
    found=$(sha256 "$archive")
    [ "$found" = "$sum" ] || fail "$archive is not the one that was released, or is damaged: its checksum is
  $found, expected
  $sum
Fetch it again. Nothing was installed."
    say "checksum is right: $archive"
}

# Sets $source to a folder with "files", SHA256SUMS and REQUIRES.
unpack() {
    if [ -n "$archive" ]; then
        verify_archive
        tar -xzf "$archive" -C "$work" || fail "$archive cannot be unpacked. Nothing was installed."
        source=$(echo "$work"/netacc-*)
    else
        source=$(dirname "$0")
    fi
    [ -f "$source/SHA256SUMS" ] || wrong_usage "no archive was named, and this script does not lie in an unpacked one"
    while read -r expected file; do
        [ -f "$source/$file" ] || fail "$file is missing in the archive. Nothing was installed."
        [ "$(sha256 "$source/$file")" = "$expected" ] || fail "$file was changed after the release. Nothing was installed."
    done <"$source/SHA256SUMS"
}

# Whether version $1 is older than $2.
older() {
    [ "$1" != "$2" ] && [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

check_system() {
    machine=$(sed -n 's/^machine=//p' "$source/REQUIRES")
    glibc=$(sed -n 's/^glibc=//p' "$source/REQUIRES")
    [ -z "$root" ] || return 0
    [ "$(uname -m)" = "$machine" ] || fail "the archive is for $machine, this machine is $(uname -m)"
    here=$(getconf GNU_LIBC_VERSION 2>/dev/null) || fail "this system has no glibc, which the tools need; for programs of musl set LD_PRELOAD to the library alone"
    if older "${here#glibc }" "$glibc"; then
        fail "the archive needs glibc $glibc or newer, this system has ${here#glibc }"
    fi
}

# Where the library goes: the folder of the linker, if the prefix is the system's.
library_folder() {
    if [ -d "$root$prefix/lib/$machine-linux-gnu" ]; then
        echo "$prefix/lib/$machine-linux-gnu"
    elif [ "$prefix" = /usr ] && [ -d "$root/usr/lib64" ]; then
        echo "$prefix/lib64"
    else
        echo "$prefix/lib"
    fi
}

# The place of a file of the archive.
destination() { # FILE
    case $1 in
    usr/lib/*) echo "$libdir/${1#usr/lib/}" ;;
    usr/*) echo "$prefix/${1#usr/}" ;;
    *) echo "/$1" ;;
    esac
}

# By rename in the same folder, so that no program sees half a file and running programs keep theirs.
put() { # FROM TO
    { mkdir -p "$(dirname "$2")" && cp "$1" "$2.new"; } 2>/dev/null || fail "$2 cannot be written; are you root?"
    case $2 in
    */bin/*) chmod 755 "$2.new" ;;
    *) chmod 644 "$2.new" ;;
    esac
    mv -f "$2.new" "$2"
}

install_files() {
    libdir=$(library_folder)
    if [ ! -e "$manifest" ] && [ -e "$root$prefix/bin/netacc_run" ]; then
        fail "$root$prefix/bin/netacc_run is there, but not from this script (a package, or make install).
Remove that first, or choose another --prefix. Nothing was installed."
    fi
    : >"$work/manifest"
    while read -r expected file; do
        file=${file#files/}
        to=$(destination "$file")
        if [ "$to" = /etc/netacc.conf ] && [ -e "$root$to" ]; then
            # Ours as long as it is unchanged; what it was is in the manifest from when it was installed.
            before=$(sed -n 's/  \/etc\/netacc\.conf$//p' "$manifest" 2>/dev/null || :)
            if [ "$(sha256 "$root$to")" != "$before" ]; then
                say "kept: $root$to"
                [ -z "$before" ] || echo "$before  $to" >>"$work/manifest"
                continue
            fi
        fi
        put "$source/files/$file" "$root$to"
        echo "$expected  $to" >>"$work/manifest"
    done <"$source/SHA256SUMS"
    link_in_lib64
    remove_obsolete
    put "$work/manifest" "$manifest"
}

# Scripts name the library as /lib64/NAME. Where that folder is there and may be written to, that is the library.
link_in_lib64() {
    name=libnetacc-preload.so
    folder=/usr/lib64
    # A link to a folder of the system itself would lead out of --root.
    [ -d "$root/lib64" ] && [ ! -L "$root/lib64" ] && folder=/lib64
    link=$folder/$name
    [ -d "$root$folder" ] && [ "$link" != "$libdir/$name" ] || return 0
    if [ -e "$root$link" ] && [ ! -L "$root$link" ]; then
        say "kept: $root$link, which is not from this script"
    elif ln -sfn "$libdir/$name" "$root$link" 2>/dev/null; then
        echo "link  $link" >>"$work/manifest"
    else
        say "note: there is no $root$link, which only root can make"
    fi
}

# What an earlier version had and this one has not.
remove_obsolete() {
    [ -e "$manifest" ] || return 0
    while read -r _ file; do
        grep -q "  $file\$" "$work/manifest" || rm -f "$root$file"
    done <"$manifest"
}

remove_files() {
    [ -e "$manifest" ] || fail "nothing to uninstall: $manifest is not there (was another --prefix used, or a package?)"
    library=$(sed -n 's/^[^l][^ ]*  \(.*\/libnetacc-preload\.so\)$/\1/p' "$manifest")
    while read -r expected file; do
        if [ "$file" = /etc/netacc.conf ] && [ -e "$root$file" ] && [ "$(sha256 "$root$file")" != "$expected" ]; then
            say "kept, because it was changed: $root$file"
        elif [ "$expected" != link ] || [ "$(readlink "$root$file")" = "$library" ]; then
            rm -f "$root$file" || fail "$root$file cannot be removed; are you root?"
        fi
    done <"$manifest"
    rm -f "$manifest"
    for folder in share/netacc share/doc/netacc/examples share/doc/netacc; do
        rmdir "$root$prefix/$folder" 2>/dev/null || :
    done
    refresh_linker
    say "uninstalled from $root$prefix. Programs that still run keep the library until they end."
}

refresh_linker() {
    [ -n "$root" ] || PATH="$PATH:/usr/sbin:/sbin" ldconfig 2>/dev/null || :
}

tell() {
    say "installed in $root$prefix. Try: netacc_run PROGRAM"
    [ -z "$root" ] || return 0
    name=libnetacc-preload.so
    # The dynamic linker complains on standard error about what it does not find, and goes on.
    [ -z "$(LD_PRELOAD=$name NACC_LOG_PATH='' /bin/true 2>&1)" ] || name=$libdir/$name
    say "without the launcher: LD_PRELOAD=$name PROGRAM"
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) say "note: $prefix/bin is not in your PATH" ;;
    esac
}

if [ $action = uninstall ]; then
    [ -z "$archive" ] || wrong_usage "--uninstall takes no archive"
    remove_files
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
unpack
check_system
install_files
refresh_linker
tell
