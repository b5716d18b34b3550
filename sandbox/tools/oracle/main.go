// Command oracle prints vectors of what Go's own libraries answer, for the tests of karp-domain: hashes of node pools and
// node classes, quantities and cron schedules. `cargo sandbox oracle` runs it.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: oracle FOLDER")
		os.Exit(2)
	}
	for name, vectors := range map[string][]any{
		"node-pool-hashes.json":  poolVectors(),
		"node-class-hashes.json": classVectors(),
		"quantities.json":        quantityVectors(),
		"quantity-pairs.json":    pairVectors(),
		"cron.json":              cronVectors(),
	} {
		if err := write(filepath.Join(os.Args[1], name), vectors); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%s: %d vectors\n", name, len(vectors))
	}
}

// One vector a line, so that a change shows as lines.
func write(path string, vectors []any) error {
	var text bytes.Buffer
	for index, vector := range vectors {
		line, err := json.Marshal(vector)
		if err != nil {
			return err
		}
		text.WriteString(map[bool]string{true: "[\n", false: ",\n"}[index == 0])
		text.Write(line)
	}
	text.WriteString("\n]\n")
	return os.WriteFile(path, text.Bytes(), 0o644)
}

func sorted[V any](fields map[string]V) []string {
	return slices.Sorted(maps.Keys(fields))
}
