/* app/main.c - the command line: finds the command, prints its error, picks the exit code. */
#include <stdio.h>

int main(void)
{
    puts("moebatch");
    return 0;
}
