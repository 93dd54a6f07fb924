// What a program finds when it begins: for test_go.py. It ends with status 7.
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"syscall"
)

// The mask of signals is a thread's own, and the runtime blocks all signals while a thread makes another one. So main
// stays on the thread whose mask it reads.
func init() {
	runtime.LockOSThread()
}

func main() {
	exe, _ := os.Readlink("/proc/self/exe")
	comm, _ := os.ReadFile("/proc/self/comm")
	fmt.Println(exe, string(comm), os.Args)
	// The launcher adds two variables, and sorts them.
	variables := os.Environ()
	sort.Strings(variables)
	for _, variable := range variables {
		if !strings.HasPrefix(variable, "LD_PRELOAD=") && !strings.HasPrefix(variable, "ASAN_OPTIONS=") {
			fmt.Println(variable)
		}
	}
	status, _ := os.ReadFile("/proc/thread-self/status")
	for _, line := range strings.Split(string(status), "\n") {
		for _, name := range []string{"PPid", "TracerPid", "Sig", "Shd", "Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups"} {
			if strings.HasPrefix(line, name) && !strings.HasPrefix(line, "SigQ") {
				// The runtime may send SIGURG to a thread at any time.
				if pending, found := strings.CutPrefix(line, "SigPnd:\t"); found {
					var signals uint64
					fmt.Sscanf(pending, "%x", &signals)
					line = fmt.Sprintf("SigPnd: %x", signals&^(1<<(syscall.SIGURG-1)))
				}
				fmt.Println(line)
			}
		}
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	fmt.Printf("children %q\n", children)
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "pipe:") {
			fmt.Println(fd.Name(), to)
		}
	}
	// The auxiliary vector, without the addresses, which the kernel chooses.
	vector, _ := os.ReadFile("/proc/self/auxv")
	for i := 0; i+16 <= len(vector); i += 16 {
		fmt.Print(vector[i], " ")
	}
	fmt.Println(bytes.Count(vector, []byte{0}) > 0)
	os.Exit(7)
}
