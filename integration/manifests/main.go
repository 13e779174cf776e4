// manifests renders the chart in conf/helm by Helm's own code, and checks the rendered files, and
// conf/examples, against Kubernetes' own types.
//
//	manifests render ROOT   writes conf/manifests and integration/manifests/rendered, then checks the files
//	manifests check ROOT    writes nothing, checks the files, and reports files that render would change
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

const (
	packaged = "conf/helm/rdma-device-plugin"
	examples = "conf/examples"
	refused  = "integration/manifests/refused"
	applied  = "conf/manifests"
	rendered = "integration/manifests/rendered"
	// version of Kubernetes, unless a values file names another
	usual = "v1.33.0"
)

// folders lists directories with values files, each with the directory of the rendered files. over is a values file
// that each values file of the directory overrides.
var folders = []struct{ values, over, made string }{
	{"conf/helm/values", "", applied},
	{"integration/manifests/values", "", rendered},
	// with vf.yaml the DaemonSet mounts all directories that differ between platforms
	{packaged + "/platforms", "conf/helm/values/vf.yaml", rendered + "/platforms"},
	{"integration/manifests/values/openshift", packaged + "/platforms/openshift.yaml", rendered + "/openshift"},
}

func main() {
	if len(os.Args) != 3 || (os.Args[1] != "render" && os.Args[1] != "check") {
		fmt.Fprintln(os.Stderr, "usage: manifests render|check ROOT")
		os.Exit(2)
	}
	count, err := run(os.Args[1] == "render", os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", strings.ReplaceAll(err.Error(), "\n", "\nmanifests: "))
		os.Exit(1)
	}
	fmt.Printf("rendered %d files; these files and the examples match Kubernetes' types\n", count)
}

// run renders all files, writes or compares them, and checks them. It returns the number of files, and all problems.
func run(write bool, root string) (int, error) {
	made, err := all(root)
	if err != nil {
		return 0, err
	}
	var wrong []error
	for _, path := range sorted(made) {
		file := filepath.Join(root, path)
		if write {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return 0, err
			}
			if err := os.WriteFile(file, []byte(made[path]), 0o644); err != nil {
				return 0, err
			}
		} else if found, err := os.ReadFile(file); err != nil || string(found) != made[path] {
			wrong = append(wrong, fmt.Errorf("%s differs from the rendered chart: run scripts/manifests", path))
		}
	}
	wrong = append(wrong, stray(root, made), typed(root, made), refusals(root))
	return len(made), errors.Join(wrong...)
}

// all returns the text of each rendered file by path: the head comment of the values file, and the rendered chart.
func all(root string) (map[string]string, error) {
	packed, err := loader.Load(filepath.Join(root, packaged))
	if err != nil {
		return nil, err
	}
	made := map[string]string{}
	for _, folder := range folders {
		cases, err := names(filepath.Join(root, folder.values), ".yaml")
		if err != nil {
			return nil, err
		}
		for _, name := range cases {
			file := filepath.Join(root, folder.values, name)
			with, files := folder.values+"/"+name, []string{file}
			if folder.over != "" {
				with = folder.over + " and " + with
				files = []string{filepath.Join(root, folder.over), file}
			}
			text, err := templated(packed, files...)
			if err != nil {
				return nil, fmt.Errorf("%s with %s: %w", packaged, with, err)
			}
			purpose, err := purpose(file)
			if err != nil {
				return nil, err
			}
			from := fmt.Sprintf("#\n# Made by scripts/manifests from %s with %s.\n", packaged, with)
			made[filepath.Join(folder.made, name)] = purpose + from + text
		}
	}
	return made, nil
}

// purpose returns the comment at the beginning of a values file.
func purpose(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var comment strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		comment.WriteString(line)
	}
	if comment.Len() == 0 {
		return "", fmt.Errorf("%s: begin the file with a comment that states its purpose", file)
	}
	return comment.String(), nil
}

// said returns the text of the comment line "# key: text" of a values file, or an empty text.
func said(file, key string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if what, found := strings.CutPrefix(line, "# "+key+": "); found {
			return strings.TrimSpace(what), nil
		}
	}
	return "", nil
}

// templated returns the chart as `helm template --namespace kube-system --values FILE --values FILE` renders it, for
// the version of Kubernetes that a values file names. A later file overrides earlier files.
func templated(packed *chart.Chart, files ...string) (string, error) {
	given := chartutil.Values{}
	version := ""
	for _, file := range files {
		values, err := chartutil.ReadValuesFile(file)
		if err != nil {
			return "", err
		}
		given = chartutil.MergeTables(values, given)
		says, err := said(file, "Kubernetes")
		if err != nil {
			return "", err
		}
		version = cmp.Or(says, version)
	}
	cluster := chartutil.DefaultCapabilities.Copy()
	kubernetes, err := chartutil.ParseKubeVersion(cmp.Or(version, usual))
	if err != nil {
		return "", err
	}
	cluster.KubeVersion = *kubernetes
	release := chartutil.ReleaseOptions{Name: "rdma", Namespace: "kube-system", Revision: 1, IsInstall: true}
	complete, err := chartutil.ToRenderValues(packed, given, release, cluster)
	if err != nil {
		return "", err
	}
	texts, err := engine.Render(packed, complete)
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, name := range sorted(texts) {
		if text := strings.TrimSpace(texts[name]); text != "" && strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&all, "---\n%s\n", text)
		}
	}
	return all.String(), nil
}

// refusals checks that the chart refuses each values file of the directory refused, for the reason in the file.
func refusals(root string) error {
	packed, err := loader.Load(filepath.Join(root, packaged))
	if err != nil {
		return err
	}
	cases, err := names(filepath.Join(root, refused), ".yaml")
	if err != nil {
		return err
	}
	var wrong []error
	for _, name := range cases {
		file := filepath.Join(root, refused, name)
		reason, err := said(file, "refused")
		if err != nil {
			return err
		}
		if reason == "" {
			wrong = append(wrong, fmt.Errorf("%s/%s: add the line \"# refused: REASON\"", refused, name))
		} else if _, err := templated(packed, file); err == nil {
			wrong = append(wrong, fmt.Errorf("the chart accepts %s/%s, but must refuse it", refused, name))
		} else if !strings.Contains(err.Error(), reason) {
			wrong = append(wrong, fmt.Errorf("the chart does not refuse %s/%s by %q: %w", refused, name, reason, err))
		}
	}
	return errors.Join(wrong...)
}

// stray reports files in the directories of rendered files that are not in made.
func stray(root string, made map[string]string) error {
	var wrong []error
	for _, folder := range folders {
		found, err := names(filepath.Join(root, folder.made), "")
		if err != nil {
			return err
		}
		for _, name := range found {
			if _, known := made[filepath.Join(folder.made, name)]; !known {
				wrong = append(wrong, fmt.Errorf("%s/%s is rendered from no values file: remove it", folder.made, name))
			}
		}
	}
	return errors.Join(wrong...)
}

// names returns the sorted names of the files in a folder that have this ending.
func names(folder, ending string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		if !entry.IsDir() && strings.HasSuffix(entry.Name(), ending) {
			found = append(found, entry.Name())
		}
	}
	return found, nil
}

func sorted(of map[string]string) []string {
	var keys []string
	for key := range of {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
