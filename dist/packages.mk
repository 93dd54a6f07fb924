# The archive of a release and the packages of distributions. All contain what "make install" installs, and nothing else,
# so that no list of files has to be kept anywhere.

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCHIVE := netacc-$(VERSION)-$(ARCH)-linux-gnu
OUTPUT ?= build/packages
FOREIGN := $(filter-out $(shell uname -m),$(ARCH))
STRIP ?= $(if $(FOREIGN),$(ARCH)-linux-gnu-strip,strip)
# Into a clean folder, laid out for a system that need not be this one: where the library, zsh's completions, and the link to
# the library go. Line numbers are four fifths of the size.
STAGE = rm -rf "$(1)" && $(MAKE) --no-print-directory install DESTDIR="$(CURDIR)/$(1)" BUILD="$(BUILD)" PREFIX=/usr \
	SYSCONFDIR=/etc LIBDIR="$(2)" ZSHDIR="$(3)" LIB64="$(4)" >/dev/null && \
	if command -v $(STRIP) >/dev/null; then \
		$(STRIP) --strip-unneeded $(foreach p,$(PROGRAMS),"$(1)/usr/bin/$(p)") "$(1)$(2)/$(LIBRARY)"; \
	else echo "not stripped: $(STRIP) is not there"; fi
# The same files give the same archive: no names, no times but that of the last change.
EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),0)

dist: all
	@$(call STAGE,$(OUTPUT)/stage/$(ARCHIVE)/files,/usr/lib,/usr/share/zsh/site-functions,)
	@cp dist/install.sh "$(OUTPUT)/stage/$(ARCHIVE)/"
	@{ echo "machine=$(ARCH)"; echo "glibc=$$(scripts/glibc-needed $(BUILT))"; } >"$(OUTPUT)/stage/$(ARCHIVE)/REQUIRES"
	@cd "$(OUTPUT)/stage/$(ARCHIVE)" && find files -type f | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
	tar -C "$(OUTPUT)/stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(EPOCH)" -cf - "$(ARCHIVE)" \
		| gzip -n9 >"$(OUTPUT)/$(ARCHIVE).tar.gz"
	@cd "$(OUTPUT)" && sha256sum "$(ARCHIVE).tar.gz" >"$(ARCHIVE).tar.gz.sha256"
	@cp dist/install.sh "$(OUTPUT)/"
	@echo "made: $(OUTPUT)/$(ARCHIVE).tar.gz, its .sha256 and install.sh; needs `grep glibc= "$(OUTPUT)/stage/$(ARCHIVE)/REQUIRES"` or newer"

DEB_STAGE := build/stage-deb
DEB_ARCH := $(patsubst aarch64,arm64,$(patsubst x86_64,amd64,$(ARCH)))

deb: all
	@command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || { \
		echo "dpkg-deb or dpkg-shlibdeps is missing (packages dpkg and dpkg-dev)" >&2; exit 1; }
	@$(call STAGE,$(DEB_STAGE),/usr/lib/$(ARCH)-linux-gnu,/usr/share/zsh/vendor-completions,/usr/lib64)
	@dist/debian "$(DEB_STAGE)" "$(VERSION)" "$(DEB_ARCH)" "$(EPOCH)"
	@mkdir -p "$(OUTPUT)"
	SOURCE_DATE_EPOCH=$(EPOCH) dpkg-deb --root-owner-group -Zxz --build "$(DEB_STAGE)" "$(OUTPUT)/"

RPM_STAGE := build/stage-rpm

rpm: all
	@command -v rpmbuild >/dev/null || { echo "rpmbuild is missing (packages rpm or rpm-build)" >&2; exit 1; }
	@$(call STAGE,$(RPM_STAGE),/usr/lib64,/usr/share/zsh/site-functions,/usr/lib64)
	@mkdir -p "$(OUTPUT)"
	SOURCE_DATE_EPOCH=$(EPOCH) rpmbuild -bb --quiet --target "$(ARCH)-linux" --define "_topdir $(CURDIR)/build/rpmbuild" \
		--define "_rpmdir $(CURDIR)/$(OUTPUT)" --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
		--define "netacc_version $(VERSION)" --define "netacc_files $(CURDIR)/$(RPM_STAGE)" dist/netacc.spec
