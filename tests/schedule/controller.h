/* Runs a few threads through every interleaving of the named points in the allocator (base/schedule.h).
 *
 * One thread runs at a time, from one point to its next; the allocator holds no lock at a point, so the running thread
 * never waits for a stopped one, and one that does not reach its next point in time is a deadlock. Each interleaving runs
 * in a forked child, so that all start from the same state and a crash is one failed schedule. */
#ifndef TESTS_SCHEDULE_CONTROLLER_H
#define TESTS_SCHEDULE_CONTROLLER_H

#include <functional>
#include <string>
#include <vector>

struct Actor {
  std::string name;
  std::function<void()> set_up; /* runs to its end before any body starts, actor by actor */
  std::function<void()> body;   /* its points are scheduled */
};

struct Scenario {
  std::vector<Actor> actors;
  /* Both return "" or what is wrong. when_stopped: all bodies are done, the threads still exist. at_end: they have ended. */
  std::function<std::string()> when_stopped, at_end;
};

struct Exploration {
  size_t schedules = 0; /* that ran */
  std::string failure;  /* the first failed one: what and the order of points */
};

/* All schedules, or that many random ones where all would be too many (the same ones in each run). make() is called in
 * the child, once a schedule. Stops at the first failure. */
Exploration explore(const std::function<Scenario()> &make, size_t samples = 0);

/* For a scenario that forks: in the child no point stops any more. */
void stop_scheduling_here();

#endif
