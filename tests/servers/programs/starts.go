// Starts static programs in several ways, for test_go.py.
//
//	starts run STATIC BEGINS   starts itself as STATIC in each way, then BEGINS, then many at once
//	starts child               says whether the library is in it, and ends with status 7
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

const nobody = 65534

func run(attr *syscall.SysProcAttr, argv ...string) string {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = attr
	said, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s[%v]", said, err)
}

func main() {
	if os.Args[1] == "child" {
		maps, _ := os.ReadFile("/proc/self/maps")
		fmt.Print(strings.Contains(string(maps), "libnetacc"))
		os.Exit(7)
	}
	static, begins := os.Args[2], os.Args[3]
	for _, way := range []struct {
		name string
		attr *syscall.SysProcAttr
	}{
		{"plain", nil},
		{"session", &syscall.SysProcAttr{Setsid: true}},
		{"group", &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}},
		{"namespace", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC}},
		{"another user", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}},
	} {
		fmt.Println(way.name, run(way.attr, static, "child"))
	}
	fmt.Println("none", run(nil, "/no/such/program"))
	fmt.Println(run(nil, begins, "a", "b c", ""))
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 4 {
				runtime.GC()
				fmt.Println("at once", run(nil, static, "child"))
			}
		}()
	}
	all.Wait()
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	fmt.Printf("children %q\n", children)
}
