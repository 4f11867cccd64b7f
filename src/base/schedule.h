/* Named points where no lock is held and others may come between. Nothing in the library; in the schedule tests
 * (tests/schedule) a build with HAK_SCHEDULE_POINTS calls the test's hook at each, which decides who runs next. */
#ifndef HAK_BASE_SCHEDULE_H
#define HAK_BASE_SCHEDULE_H

#if HAK_SCHEDULE_POINTS
extern void (*hak_schedule_hook)(const char *point);
#define HAK_SCHEDULE_POINT(name) (hak_schedule_hook != 0 ? hak_schedule_hook(name) : (void)0)
#else
#define HAK_SCHEDULE_POINT(name) ((void)0)
#endif

#endif
