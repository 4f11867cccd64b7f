/* Where a file is written: a folder's descriptor and a name in it.
 *
 * Contract: no user but the caller and root makes a path lead elsewhere. Links of others are refused, in the middle of
 * a path too, and so is a pipe of another user in a folder that anybody may write to. What is made is new, of mode
 * 0600. Nothing is allocated, errno stays. */
#ifndef HAK_OS_PLACE_H
#define HAK_OS_PLACE_H

#include "os/os.h"

#define HAK_OS_NAME_BYTES 256 /* NAME_MAX and the 0 behind it */

typedef struct hak_os_place {
  int folder;
  bool replaceable; /* nothing is there, or a regular file: another file may take the name */
  bool through;     /* a link of /proc, which only the kernel can follow */
  hak_os_identity there; /* where it is not replaceable */
  uint64_t written_ms;   /* of a regular file; 0: nothing is there */
  char name[HAK_OS_NAME_BYTES];
} hak_os_place;

/* Follows the path. 0, or an errno value; EACCES: another user's link or pipe; EISDIR: a folder. After 0 hak_os_leave
 * is due. */
int hak_os_find_place(const char *path, hak_os_place *place);
void hak_os_leave(const hak_os_place *place);

/* A new file beside the place, for writing, whose name is written to `temporary`. 0 or an errno value. */
int hak_os_create_beside(const hak_os_place *place, char temporary[HAK_OS_NAME_BYTES], int *fd);
/* The file takes the place's name, or has no name any more. */
int hak_os_move_into(const hak_os_place *place, const char *temporary);
void hak_os_remove_from(const hak_os_place *place, const char *name);
/* For writing what is there and cannot be replaced: a pipe, a device, what a link of /proc leads to, which loses its
 * contents. ENXIO: a pipe that nobody reads. 0 or an errno value. */
int hak_os_open_place(const hak_os_place *place, int *fd);
/* The file of that path has no name any more. */
void hak_os_remove(const char *path);
/* When a regular file of that path was last written to, by the system's clock; 0: there is none. */
uint64_t hak_os_written_ms(const char *path);

#endif
