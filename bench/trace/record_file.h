/*
 * The recorder's file: its name, its header, room for one more chunk. Opened anew for each chunk,
 * so that the program keeps every file descriptor number it expects. Nothing here allocates.
 */
#ifndef HAKLAB_RECORD_FILE_H
#define HAKLAB_RECORD_FILE_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the settings, HAKLAB_RECORD_FILE and HAKLAB_RECORD_LIMIT_MB, once for this process and all
 * it forks: programs change their environment. False as long as there is no environment to read. */
bool record_file_settings(void);

/* HAKLAB_RECORD_FILE names the first process's file; later ones add their process id, and a number
 * where that is taken too. `path` has room for RECORD_PATH_BYTES. */
enum { RECORD_PATH_BYTES = 4096 };
bool record_file_create(char *path, bool forked);

/* Room for chunk `index`, mapped and zeroed; NULL when there is none. */
uint8_t *record_file_map(const char *path, uint64_t index);

/* One line on stderr. */
void record_complain(const char *what, const char *detail);

#endif
