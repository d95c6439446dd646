// Command tidegate-kube holds every Kubernetes component that a local cluster needs in one binary.
//
// One binary, because all components share most of their packages: linked once they take 200 MB, apart a gigabyte.
// It behaves as the component whose name it is called by (see components), so the cluster links those names to it.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on each component's /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components maps the name the binary is called by to what then runs; each returns the exit code.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(manager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
	"fake-gpu":                runFakeGPU,
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := components[name]
	if !known {
		names := strings.Join(slices.Sorted(maps.Keys(components)), ", ")
		fmt.Fprintf(os.Stderr, "tidegate-kube: called as %q; link it under one of these names and call that: %s\n", name, names)
		os.Exit(2)
	}
	os.Exit(run())
}

func runEtcd() int {
	etcdmain.Main(os.Args) // exits by itself on errors
	return 0
}

// runKubectl is kubectl's own main: CheckErr words errors for people and exits.
func runKubectl() int {
	cmdutil.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
	return 0
}
