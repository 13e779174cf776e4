// Kubernetes' own programs in one, for the tests. Nothing is changed or added; go.mod names the release,
// and for each of its parts, which its own go.mod takes from the same source tree, the module of that
// release. etcd's server is the one module of another release line.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 kubectl,
}

// The program by whose name this one is called, or that its first argument names.
func main() {
	program, found := programs[filepath.Base(os.Args[0])]
	if !found && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		program, found = programs[os.Args[0]]
	}
	if !found {
		fmt.Fprintf(os.Stderr, "no program is called %q\n", os.Args[0])
		os.Exit(2)
	}
	program()
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }

func kubectl() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
