// Kubernetes' own kubelet, for the lab. Nothing is changed or added; go.mod names the release, and
// for each of its parts, which its own go.mod takes from the same source tree, the module of that
// release.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
