package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const randomSchedules = 160

// A schedule in UTC: the next hit in Unix seconds after each of the times (0 for none within robfig's five years), and
// whether a window of each length that opens at the hits is open then. Only the schedule where it is refused.
type cronVector struct {
	Schedule string   `json:"schedule"`
	Next     []int64  `json:"next,omitempty"`
	Open     []string `json:"open,omitempty"`
}

// The first vector names the times and the lengths of windows, in seconds.
type cronHeader struct {
	Times     []int64 `json:"times"`
	Durations []int64 `json:"durations"`
}

func writtenSchedules() []string {
	return strings.Split(`@yearly|@annually|@monthly|@weekly|@daily|@midnight|@hourly|@every 1h|@every 90m|@Hourly|@reboot|@|@hourly 1|
* * * * *|0 0 * * *|*/15 * * * *|5/15 * * * *|0-30/10 * * * *|1,2,3 * * * *|1-5,10-12 8-17 * * *|0 9 * * 1-5|0 9 * * MON-FRI|
0 9 * * mon,WED|0 0 1 JAN *|0 0 1 jan-mar *|0 0 13 * 5|0 0 13 * FRI|0 0 */2 * 1|0 0 ? * 1|0 0 * * ?|0 0 1 * ?|0 0 31 2 *|0 0 30 2 1|
0 0 29 2 *|0 0 29 2 0|0 0 31 4,6 *|0 0 31 * *|59 23 31 12 *|0 0 1 1 *|0 12 1-7 * 0|0 0 * * 0|0 0 * * 6|0 0 * * 7|0 0 * * 0-7|
60 * * * *|* 24 * * *|* * 0 * *|* * 32 * *|* * * 0 *|* * * 13 *|-1 * * * *|a * * * *|* * * * X|*/0 * * * *|*/100 * * * *|
5-1 * * * *|1-2-3 * * * *|1/2/3 * * * *|1- * * * *|, * * * *|1, * * * *|,,1 * * * *| 0  0\t* * * |* * * *|* * * * * *|||   |
0 0 L * *|0 0 15W * *|0 0 * * 5#2|0 0 * * 5L|H * * * *|TZ=UTC 0 0 * * *|CRON_TZ=UTC 0 0 * * *|0 0 * * * UTC|+5 * * * *|05 007 * * *|
*-5 * * * *|?/5 * * * *|? ? ? ? ?|0 0 * 1/3 *|0 0 * 1-12/5 2/2|30 2 * 3 0|*,5 * * * *|5,* 1 * * *|0 0 *,5 * 1|0 0 5,* * 1|0 0 1-31 * 1|
0 0 */1 * 1|0 0 * */13 *|4294967296 * * * *|99999999999999999999 * * * *|* * 15 * sun-tue|* * * january *|0 0 10/30 * 3|*/ * * * *|/5 * * * *`, "|")
}

func randomSchedule(random *rand.Rand) string {
	bounds := [][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}
	fields := make([]string, len(bounds))
	for index, bound := range bounds {
		// Now and then out of bounds by one.
		number := func() int { return bound[0] + random.IntN(bound[1]-bound[0]+1) + random.IntN(40)/39 }
		part := func() string {
			switch random.IntN(8) {
			case 0:
				return fmt.Sprint(number())
			case 1:
				a, b := number(), number()
				return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
			case 2:
				return fmt.Sprintf("*/%d", 1+random.IntN(7))
			case 3:
				return fmt.Sprintf("%d/%d", number(), 1+random.IntN(20))
			default:
				return "*"
			}
		}
		fields[index] = part()
		for random.IntN(5) == 0 {
			fields[index] += "," + part()
		}
	}
	return strings.Join(fields, " ")
}

func cronVectors() []any {
	header := cronHeader{Durations: []int64{60, 3600, 8 * 3600, 24 * 3600, 14 * 24 * 3600}}
	var times []time.Time
	for _, text := range strings.Fields(`2026-11-21T12:00:00Z 2026-11-20T09:00:00Z 2026-11-20T16:59:59Z 2026-02-28T23:59:59Z 2028-02-29T00:00:00Z
		2026-12-31T23:59:30Z 2027-01-01T00:00:00Z 2026-03-29T01:30:00Z 2026-06-13T00:00:01Z 2096-03-01T00:00:00Z`) {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			panic(err)
		}
		times, header.Times = append(times, at), append(header.Times, at.Unix())
	}
	vectors := []any{header}
	random := rand.New(rand.NewPCG(4, 2))
	schedules := writtenSchedules()
	for range randomSchedules {
		schedules = append(schedules, randomSchedule(random))
	}
	for _, schedule := range schedules {
		vectors = append(vectors, cronOf(strings.ReplaceAll(strings.TrimPrefix(schedule, "\n"), `\t`, "\t"), times, header.Durations))
	}
	return vectors
}

func cronOf(text string, times []time.Time, durations []int64) cronVector {
	vector := cronVector{Schedule: text}
	// robfig panics on some texts that lack fields; Karpenter's pattern keeps those away.
	defer func() { recover() }()
	schedule, err := cron.ParseStandard("TZ=UTC " + text)
	if err != nil {
		return vector
	}
	for _, now := range times {
		if hit := schedule.Next(now); hit.IsZero() {
			vector.Next = append(vector.Next, 0)
		} else {
			vector.Next = append(vector.Next, hit.Unix())
		}
	}
	for _, seconds := range durations {
		open := ""
		for _, now := range times {
			hit := schedule.Next(now.Add(-time.Duration(seconds) * time.Second))
			open += map[bool]string{true: "1", false: "0"}[!hit.After(now)]
		}
		vector.Open = append(vector.Open, open)
	}
	return vector
}
