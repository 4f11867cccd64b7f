#include "os/mappings.h"

#include <elf.h>
#include <link.h>
#include <string.h>

#include "os/os.h"

#define PATH_BYTES 4096
#define NOTES_BYTES 1024

void hak_each_mapping(void (*line)(void *context, char *text), void *context) {
  char buffer[PATH_BYTES + 256];
  size_t used = 0;
  int fd = hak_os_open_own("maps");
  for (long n; fd >= 0 && (n = hak_os_read(fd, buffer + used, sizeof buffer - 1 - used)) > 0;) {
    used += (size_t)n;
    HAK_ASSERT(used < sizeof buffer);
    buffer[used] = '\0';
    char *start = buffer, *end;
    while ((end = strchr(start, '\n')) != NULL) {
      *end = '\0';
      line(context, start);
      start = end + 1;
    }
    used -= (size_t)(start - buffer);
    memmove(buffer, start, used);
    if (used == sizeof buffer - 1) used = 0; /* no path is as long */
  }
  if (fd >= 0) hak_os_close(fd);
}

bool hak_mapping_parse(const char *line, hak_mapping *m) {
  const char *at = hak_os_take_number(line, 16, &m->start);
  if (*at != '-') return false;
  at = hak_os_take_number(at + 1, 16, &m->end);
  if (*at != ' ' || strlen(at) < 6) return false;
  memcpy(m->rights, at + 1, sizeof m->rights);
  at = hak_os_take_number(at + 6, 16, &m->offset);
  if (*at != ' ') return false;
  m->file = at + 1;
  /* Before the device, its number, and the path */
  for (unsigned blanks = 0; *at != '\0' && blanks < 3; at++) blanks += *at == ' ';
  m->path = at + strspn(at, " ");
  if (*m->path == '\0') m->file = m->path;
  return true;
}

static void find_note(const unsigned char *notes, size_t bytes, char text[HAK_BUILD_ID_TEXT]) {
  ElfW(Nhdr) note;
  for (size_t at = 0; at + sizeof note <= bytes;) {
    memcpy(&note, notes + at, sizeof note);
    size_t name = at + sizeof note, content = name + ((size_t)note.n_namesz + 3) / 4 * 4,
           end = content + ((size_t)note.n_descsz + 3) / 4 * 4;
    if (note.n_namesz > bytes || note.n_descsz > bytes || end > bytes) return;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes + name, "GNU", 4) == 0 &&
        2 * note.n_descsz < HAK_BUILD_ID_TEXT) {
      for (size_t i = 0; i < note.n_descsz; i++) {
        text[2 * i] = "0123456789abcdef"[notes[content + i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[notes[content + i] & 15];
      }
      text[2 * (size_t)note.n_descsz] = '\0';
      return;
    }
    at = end;
  }
}

void hak_build_id(int memory, uintptr_t start, char text[HAK_BUILD_ID_TEXT]) {
  ElfW(Ehdr) head;
  ElfW(Phdr) part;
  uintptr_t bias = start;
  text[0] = '\0';
  if (!hak_os_read_at(memory, start, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return;
  if (head.e_phentsize != sizeof part) return;
  for (unsigned i = 0; i < head.e_phnum; i++) {
    if (!hak_os_read_at(memory, start + head.e_phoff + i * sizeof part, &part, sizeof part)) return;
    if (part.p_type == PT_LOAD && part.p_offset == 0) bias = start - part.p_vaddr;
  }
  for (unsigned i = 0; i < head.e_phnum && text[0] == '\0'; i++) {
    unsigned char notes[NOTES_BYTES];
    if (!hak_os_read_at(memory, start + head.e_phoff + i * sizeof part, &part, sizeof part)) return;
    if (part.p_type != PT_NOTE || part.p_memsz > sizeof notes) continue;
    if (hak_os_read_at(memory, bias + part.p_vaddr, notes, part.p_memsz)) find_note(notes, part.p_memsz, text);
  }
}
