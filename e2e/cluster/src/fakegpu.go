package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	gpuResource  = "nvidia.com/gpu"
	gpuSocket    = "fake-gpu.sock"
	pollInterval = 200 * time.Millisecond
)

// fakeGPUs is a device plugin whose devices are names only: enough for scheduling, limits and quotas on machines
// without a card. Containers see their device ids in NVIDIA_VISIBLE_DEVICES, as NVIDIA's plugin gives them.
type fakeGPUs struct {
	deviceplugin.UnimplementedDevicePluginServer
	devices []*deviceplugin.Device
}

func newFakeGPUs(count int) *fakeGPUs {
	plugin := &fakeGPUs{}
	for i := range count {
		device := &deviceplugin.Device{ID: fmt.Sprintf("GPU-%d", i), Health: deviceplugin.Healthy}
		plugin.devices = append(plugin.devices, device)
	}
	return plugin
}

func (*fakeGPUs) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch reports the devices once: they never change.
func (plugin *fakeGPUs) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: plugin.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (*fakeGPUs) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	response := &deviceplugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}

// runFakeGPU serves `fake-gpu KUBELET_ROOT COUNT` until it is killed. The kubelet wipes the plugin folder whenever it
// starts, so a vanished socket means: register again.
func runFakeGPU() int {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: fake-gpu KUBELET_ROOT COUNT")
		return 2
	}
	count, err := strconv.Atoi(os.Args[2])
	if err != nil || count < 1 {
		fmt.Fprintf(os.Stderr, "fake-gpu: COUNT is %q; give a whole number of at least 1\n", os.Args[2])
		return 2
	}
	plugins := filepath.Join(os.Args[1], "device-plugins")
	for {
		if err := serveUntilWiped(plugins, newFakeGPUs(count)); err != nil {
			fmt.Fprintf(os.Stderr, "fake-gpu: %v; trying again\n", err)
		}
		time.Sleep(pollInterval)
	}
}

// serveUntilWiped registers with the kubelet and returns nil once the kubelet has removed our socket.
func serveUntilWiped(plugins string, plugin *fakeGPUs) error {
	socket := filepath.Join(plugins, gpuSocket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	deviceplugin.RegisterDevicePluginServer(server, plugin)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	if err := register(filepath.Join(plugins, "kubelet.sock")); err != nil {
		return fmt.Errorf("registering with the kubelet: %w", err)
	}
	fmt.Fprintf(os.Stderr, "fake-gpu: registered %d of %s\n", len(plugin.devices), gpuResource)
	for {
		select {
		case err := <-failed:
			return err
		case <-time.After(pollInterval):
			if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
		}
	}
}

func register(kubeletSocket string) error {
	connection, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = deviceplugin.NewRegistrationClient(connection).Register(ctx, &deviceplugin.RegisterRequest{
		Version:      deviceplugin.Version,
		Endpoint:     gpuSocket,
		ResourceName: gpuResource,
	})
	return err
}
