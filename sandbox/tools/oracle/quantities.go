package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"gopkg.in/inf.v0"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	randomTexts = 300
	randomPairs = 150
)

// A text and what apimachinery makes of it; only the text where it refuses. Amounts past int64 have no
// milli or value, nor have negative ones: how Go rounds those depends on how it happens to hold them.
type quantityVector struct {
	Text      string  `json:"text"`
	Canonical *string `json:"canonical,omitempty"`
	Milli     *int64  `json:"milli,omitempty"`
	Value     *int64  `json:"value,omitempty"`
}

type pairVector struct {
	A          string `json:"a"`
	B          string `json:"b"`
	Cmp        int    `json:"cmp"`
	Sum        string `json:"sum"`
	Difference string `json:"difference"`
}

func writtenTexts() []string {
	return strings.Split(`0|1|-1|+1|100m|1000m|1500m|0.5|0.1|1.|.|-|+|+.|-.| .5|.5|5.|Ki|m|E|e3|-Ki|1Ki|1024|1023Ki|1024Ki|1.5Gi|0.5Ki|
0.0001Ki|0.3Mi|1e3|1E3|1e-3|1E|2e6|1.5e3|12e-9|1n|0.1n|1u|999n|1000n|1001n|0.9n|0.0000000001|-0.0000000001|1M|1G|1T|1P|9E|10E|
1Ei|7Ei|8Ei|9Ei|16Ei|100Ei|-8Ei|-9Ei|1Pi|1025Ki|123456789|1234567890123|1.23456789012|-1.5Gi|-100m|-0.1n|5e|1e1.5|1ki|1K|
abc||1 |1Gi | 1|0x10|1_000|00012|0.00|-0|-0.0Gi|100000000000000000000|1.5k|1500000|64Gi|3.9Gi|15573Mi|7.5|1e18|1e19|1e-9|1e-10|
12345.678m|0.001Ki|1mi|1Mi1|--1|+-1|1.2.3|9223372036854775807|9223372036854775808|-9223372036854775808|-9223372036854775809|
9223372036854775807n|9223372036854775.807|922337203685477580.7|9007199254740993|0.999999999|0.9999999999|1e0|0e5|0Ki|0m|1e+3|
1e+|1e-|1E+2|1e03|1e10|1e11|1e12|1.1e1|1e-1|1e-2|1e-4|100e-3|1000e-3|1e9|1000e9|1e2Ki|1kk|1Kii|1i|i|1é|１|1,5|∞|NaN|Inf|1e21|
-1e21|0.1Ki|0.7Gi|1.0000000001Gi|2047.5Mi|3.3e3|1500e3|1500M|1500Mi|1536Mi|1048576|1048576Ki|2048e3|12e4|120e4`, "|")
}

func randomText(random *rand.Rand) string {
	pick := func(options ...string) string { return options[random.IntN(len(options))] }
	digits := func(longest int) string {
		text := ""
		for range random.IntN(longest + 1) {
			text += string(rune('0' + random.IntN(10)))
		}
		return text
	}
	number := digits(7)
	if random.IntN(2) == 0 {
		number += "." + digits(5)
	}
	suffix := pick("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e", "E", "x")
	if suffix == "e" || suffix == "E" {
		// Past e20 an amount may be more than karp counts.
		suffix += pick("", "+", "-") + fmt.Sprint(random.IntN(21))
	}
	return pick("", "", "", "-", "+") + number + suffix
}

func quantityVectors() []any {
	var texts []string
	for _, text := range writtenTexts() {
		texts = append(texts, strings.TrimPrefix(text, "\n"))
	}
	random := rand.New(rand.NewPCG(1, 9))
	for range randomTexts {
		texts = append(texts, randomText(random))
	}
	var vectors []any
	for _, text := range texts {
		vectors = append(vectors, quantityOf(text))
	}
	return vectors
}

func quantityOf(text string) quantityVector {
	vector := quantityVector{Text: text}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return vector
	}
	// Go keeps some texts as written ("+1"), so that String is not always canonical.
	number, unit := quantity.CanonicalizeBytes(nil)
	canonical := string(number) + string(unit)
	vector.Canonical = &canonical
	exact := quantity.DeepCopy()
	if quantity.Sign() < 0 {
		return vector
	}
	if fits(exact.AsDec(), 3) {
		milli := quantity.MilliValue()
		vector.Milli = &milli
	}
	if fits(exact.AsDec(), 0) {
		value := quantity.Value()
		vector.Value = &value
	}
	return vector
}

// Says whether the amount times 10^scale, rounded up, is an int64; past it Go's answers wrap.
func fits(amount *inf.Dec, scale inf.Scale) bool {
	scaled := new(inf.Dec).SetScale(amount.Scale() - scale).SetUnscaledBig(amount.UnscaledBig())
	return new(inf.Dec).Round(scaled, 0, inf.RoundUp).UnscaledBig().IsInt64()
}

func pairVectors() []any {
	random := rand.New(rand.NewPCG(2, 8))
	var good []string
	for len(good) < 2*randomPairs {
		text := randomText(random)
		if _, err := resource.ParseQuantity(text); err == nil {
			good = append(good, text)
		}
	}
	good = append(good, "0", "1Gi", "0Ki", "5", "1Gi", "1024Mi", "1000m", "1", "1e3", "1k", "100m", "1Ki", "0", "0Ki")
	var vectors []any
	for index := 0; index < len(good); index += 2 {
		a, b := resource.MustParse(good[index]), resource.MustParse(good[index+1])
		sum, difference := a.DeepCopy(), a.DeepCopy()
		sum.Add(b)
		difference.Sub(b)
		vectors = append(vectors, pairVector{good[index], good[index+1], a.Cmp(b), sum.String(), difference.String()})
	}
	return vectors
}
