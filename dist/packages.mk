# The archive of a release and the packages of distributions. All contain what "make install" installs, and nothing else,
# so that no list of files has to be kept anywhere.

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
ARCHIVE := netacc-$(VERSION)-$(ARCH)-linux-gnu
OUTPUT ?= build/packages
FOREIGN := $(filter-out $(shell uname -m),$(ARCH))
STRIP ?= $(if $(FOREIGN),$(ARCH)-linux-gnu-strip,strip)
OBJCOPY ?= $(if $(FOREIGN),$(ARCH)-linux-gnu-objcopy,objcopy)
# Into a clean folder, laid out for a system that need not be this one: where the library, zsh's completions, and the link to
# the library go. The debug information goes into a folder beside it, with "-debug" at its end; that is missing where there are
# no tools to part it from the files.
STAGE = umask 022; rm -rf "$(1)" "$(1)-debug" && $(MAKE) --no-print-directory install DESTDIR="$(CURDIR)/$(1)" BUILD="$(BUILD)" \
	PREFIX=/usr SYSCONFDIR=/etc LIBDIR="$(2)" ZSHDIR="$(3)" LIB64="$(4)" >/dev/null && \
	if command -v $(STRIP) >/dev/null && command -v $(OBJCOPY) >/dev/null; then \
		STRIP=$(STRIP) OBJCOPY=$(OBJCOPY) dist/split-debug "$(1)" $(foreach p,$(PROGRAMS),"$(1)/usr/bin/$(p)") "$(1)$(2)/$(LIBRARY)"; \
	else echo "not stripped: $(STRIP) or $(OBJCOPY) is not there"; fi
# The same files give the same archive: no names, no times but that of the last change.
EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell test ! -e .git || git log -1 --format=%ct 2>/dev/null),0)
ARCHIVED = tar --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX --mtime="@$(EPOCH)" -cf - $(1) | gzip -n9 >$(2)

DIST_STAGE := $(OUTPUT)/stage

dist: all
	@rm -rf "$(DIST_STAGE)"
	@$(call STAGE,$(DIST_STAGE)/files,/usr/lib,/usr/share/zsh/site-functions,)
	@umask 022; mkdir "$(DIST_STAGE)/$(ARCHIVE)" && mv "$(DIST_STAGE)/files" "$(DIST_STAGE)/$(ARCHIVE)/files" && \
		cp dist/install.sh "$(DIST_STAGE)/$(ARCHIVE)/"
	@{ echo "machine=$(ARCH)"; echo "glibc=$$(scripts/glibc-needed $(BUILT))"; } >"$(DIST_STAGE)/$(ARCHIVE)/REQUIRES"
	@cd "$(DIST_STAGE)/$(ARCHIVE)" && find files -type f | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
	cd "$(DIST_STAGE)" && $(call ARCHIVED,$(ARCHIVE),../$(ARCHIVE).tar.gz)
	@test ! -d "$(DIST_STAGE)/files-debug" || { cd "$(DIST_STAGE)/files-debug" && $(call ARCHIVED,usr,../../$(ARCHIVE)-debug.tar.gz); }
	@cd "$(OUTPUT)" && for file in $(ARCHIVE)*.tar.gz; do sha256sum "$$file" >"$$file.sha256"; done
	@cp dist/install.sh "$(OUTPUT)/"
	@echo "made: $(OUTPUT)/$(ARCHIVE).tar.gz, its .sha256 and install.sh; needs `grep glibc= "$(DIST_STAGE)/$(ARCHIVE)/REQUIRES"` or newer"

DEB_STAGE := build/stage-deb
# In one thread, since the bytes depend on their number.
DPKG_DEB := SOURCE_DATE_EPOCH=$(EPOCH) DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build
DEB_ARCH := $(patsubst aarch64,arm64,$(patsubst x86_64,amd64,$(ARCH)))

deb: all
	@command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || { \
		echo "dpkg-deb or dpkg-shlibdeps is missing (packages dpkg and dpkg-dev)" >&2; exit 1; }
	@$(call STAGE,$(DEB_STAGE),/usr/lib/$(ARCH)-linux-gnu,/usr/share/zsh/vendor-completions,/usr/lib64)
	@umask 022; dist/debian "$(DEB_STAGE)" "$(VERSION)" "$(DEB_ARCH)" "$(EPOCH)"
	@mkdir -p "$(OUTPUT)"
	$(DPKG_DEB) "$(DEB_STAGE)" "$(OUTPUT)/"
	@test ! -d "$(DEB_STAGE)-debug" || { umask 022; dist/debian-dbgsym "$(DEB_STAGE)-debug" "$(VERSION)" "$(DEB_ARCH)" "$(EPOCH)" && \
		$(DPKG_DEB) "$(DEB_STAGE)-debug" "$(OUTPUT)/"; }

RPM_STAGE := build/stage-rpm

rpm: all
	@command -v rpmbuild >/dev/null || { echo "rpmbuild is missing (packages rpm or rpm-build)" >&2; exit 1; }
	@$(call STAGE,$(RPM_STAGE),/usr/lib64,/usr/share/zsh/site-functions,/usr/lib64)
	@mkdir -p "$(OUTPUT)"
	SOURCE_DATE_EPOCH=$(EPOCH) rpmbuild -bb --quiet --target "$(ARCH)-linux" --define "_topdir $(CURDIR)/build/rpmbuild" \
		--define "_rpmdir $(CURDIR)/$(OUTPUT)" --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
		--define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
		--define "netacc_day $$(LC_ALL=C date -u -d @$(EPOCH) '+%a %b %d %Y')" --define "netacc_version $(VERSION)" --define "netacc_files $(CURDIR)/$(RPM_STAGE)" \
		--define "netacc_debug $(CURDIR)/$(RPM_STAGE)-debug" dist/netacc.spec
