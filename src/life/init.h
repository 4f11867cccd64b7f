/* What happens around main: nothing here is needed for malloc to work. */
#ifndef HAK_LIFE_INIT_H
#define HAK_LIFE_INIT_H

/* The constructor. A second call does nothing. */
void hak_start_first(int argc, char **argv, char **variables);

/* Put into each file of the interface that a static link may take alone, so that the constructor comes along. */
extern const char hak_init_linked;
#define HAK_LINK_INIT __attribute__((used)) static const char *const init_linked = &hak_init_linked

#endif
