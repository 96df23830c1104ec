#!/bin/sh
# install.sh ARCHIVE PREFIX: puts the C library under PREFIX (DESTDIR before it): header, static and shared library,
# pkg-config file and man page. ARCHIVE is libfolioswap_capi.a, from `cargo build --release -p folioswap-capi`.
# The shared library is linked here, because cargo sets neither a soname nor symbol versions. The static one is made one
# object whose only global names are the library's, so that a program may have another zstd or lz4 (or Rust library).
set -eu
archive=$1 prefix=$2 here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
soname=libfolioswap.so.${version%%.*}
to=${DESTDIR:-}$prefix
install -d "$to/include" "$to/lib/pkgconfig" "$to/share/man/man3"
install -m 644 "$here/include/folioswap.h" "$to/include/folioswap.h"
install -m 644 "$here/man/folioswap.3" "$to/share/man/man3/folioswap.3"
names=$(sed -n 's/^ *\(folioswap_[a-z_]*\);$/\1/p' "$here/folioswap.map")
roots='' kept=''
for name in $names; do
    roots="$roots -Wl,-u,$name" kept="$kept --keep-global-symbol=$name"
done
object=$(mktemp -d)/folioswap.o
trap 'rm -r "$(dirname "$object")"' EXIT
# shellcheck disable=SC2086 # one argument a name
${CC:-cc} -r -nostdlib -o "$object" -Wl,--gc-sections,--force-group-allocation $roots "$archive"
# What a C library may lack is weak. It would become global here, so that a program needs it.
weak=$(${READELF:-readelf} -sW "$archive" |
    awk '$7 == "UND" && $8 != "" { weak[$8] = $5 == "WEAK" && weak[$8] != "no" ? "yes" : "no" }
         END { for (name in weak) if (weak[name] == "yes") printf " --weaken-symbol=%s", name }')
# Groups of sections go: in a program with another Rust library the linker would keep only one of each name, and what
# that is called is hidden here. Two sections hold bitcode of single members, which is not valid once they are one.
# shellcheck disable=SC2086 # one argument a name
${OBJCOPY:-objcopy} --remove-section=.llvmbc --remove-section=.llvmcmd $kept $weak "$object"
rm -f "$to/lib/libfolioswap.a"
${AR:-ar} rcs "$to/lib/libfolioswap.a" "$object"
# shellcheck disable=SC2086 # one argument a name
${CC:-cc} -shared -o "$to/lib/libfolioswap.so.$version" -Wl,-soname,"$soname" \
    -Wl,--version-script="$here/folioswap.map" -Wl,-z,nodelete -Wl,-z,initfirst -Wl,--gc-sections $roots "$archive" \
    -lgcc_s -lpthread -ldl -lm -lc
ln -sf "libfolioswap.so.$version" "$to/lib/$soname"
ln -sf "$soname" "$to/lib/libfolioswap.so"
cat >"$to/lib/pkgconfig/folioswap.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: folioswap
Description: memory larger than RAM behind ordinary pointers
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lfolioswap
Libs.private: -lgcc_s -lpthread -ldl -lm
END
