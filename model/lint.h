/* model/lint.h - looks at every value of a checkpoint, for what would make results wrong and for
 * what is only odd; moebatch inspect --deep. */
#ifndef MB_MODEL_LINT_H
#define MB_MODEL_LINT_H

#include "dist/comm.h"
#include "io/arena.h"
#include "io/team.h"
#include "model/modules.h"

typedef enum LintLevel {
    LINT_NOTE,    /* true and harmless: unequal scales of gate and up */
    LINT_WARNING, /* odd: an exclude that matches nothing, weights that are all 0 */
    LINT_ERROR    /* running refuses it, too */
} LintLevel;

typedef struct Finding {
    LintLevel level;
    const char *text; /* "model.safetensors: tensor "...": what it is, what was expected" */
} Finding;

typedef struct Lint {
    Finding *at; /* [n] on rank 0, in the order of the modules, then what is about the whole */
    int n;
    int n_of[3]; /* by level */
    Arena arena;
} Lint;

/* Collective: the tensors are dealt to the ranks, and on each to the team's threads (NULL: one).
 * dir is looked through for parts that no index lists. What the headers alone show,
 * checkpoint_open has refused before. */
Status lint_run(const char *dir, Checkpoint *c, const Modules *modules, Comm *comm, Team *team,
                Lint *out, Err *e);
void lint_free(Lint *l); /* all zero is fine, and so is twice */

const char *lint_level_name(LintLevel level); /* "error" */

#endif
