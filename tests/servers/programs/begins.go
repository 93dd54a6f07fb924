// What a program finds when it begins: for test_go.py. It ends with status 7.
package main

import (
	"bytes"
	"fmt"
	"os"
	"sort"
	"strings"
)

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
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		for _, name := range []string{"PPid", "TracerPid", "Sig", "Shd", "Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups"} {
			if strings.HasPrefix(line, name) && !strings.HasPrefix(line, "SigQ") {
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
